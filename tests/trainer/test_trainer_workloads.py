"""Whole trainings on a user's own data: a text, and a folder of images."""

import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.trainer.hosts import complete_steps, hosts, metrics, write_job
from tests.trainer.test_trainer_exchange import launch
from trainer.contract import events

VERSE = "the quick brown fox jumps over the lazy dog. "


def draw_images(root: Path) -> None:
    """Two classes that differ in colour, 40 + 10 images of each."""
    chance = random.Random(0)
    for part, count in (("train", 40), ("test", 10)):
        for red, name in enumerate(("blue", "red")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                shade = chance.randrange(120, 256)
                colour = (shade, 40, 40) if red else (40, 40, shade)
                Image.new("RGB", (48, 40), colour).save(folder / f"{number}.jpg")


def test_a_text_is_learnt_by_two_processes(tmp_path: Path) -> None:
    (tmp_path / "verse.txt").write_text(VERSE * 200)
    job = write_job(
        tmp_path, dataset="text", path="verse.txt", model="gpt", context=32, epochs=12,
        batch_size=16, optimizer="adamw", learning_rate=0.003, warm_up=20,
        options={"layers": 2, "heads": 2, "width": 64},
    )  # fmt: skip
    with hosts(tmp_path) as local:
        task = launch(local, job, 2, KIT_DATA=tmp_path)
        assert task.wait() == 0, task.text
    lines = metrics(tmp_path / "digits")
    # Nats for a character: at first less than the logarithm of all 28 that there are.
    assert lines[1]["loss"] < 3.4
    assert lines[-1]["loss"] < 0.5
    assert lines[-1]["accuracy"] > 0.9
    # 900 characters of the test in windows of 32, each counted once.
    counted = lines[-1]["accuracy"] * 28 * 32
    assert abs(counted - round(counted)) < 1e-6


def test_a_folder_is_learnt_with_everything_that_airbench_has(tmp_path: Path) -> None:
    draw_images(tmp_path / "colours")
    recipe: dict[str, Any] = {
        "dataset": "folder", "path": "colours", "model": "airbench", "batch_size": 16,
        "learning_rate": 0.05, "schedule": "triangle", "label_smoothing": 0.2, "ema": True,
        "flip_at_test": True, "weight_decay": 0.001,
    }  # fmt: skip
    job = write_job(tmp_path, epochs=2, **recipe)
    with hosts(tmp_path) as local:
        task = launch(local, job, 1, KIT_DATA=tmp_path)
        assert task.wait() == 0, task.text
        job = write_job(tmp_path, epochs=3, **recipe)
        task = launch(local, job, 1, KIT_DATA=tmp_path)
        assert task.wait() == 0, task.text
    assert "resumes at step 10, epoch 2 + 0" in task.text
    assert metrics(tmp_path / "digits")[-1]["accuracy"] >= 0.9  # 1.0 or 0.9, as a CPU rounds.
    folder = tmp_path / "digits"
    state = torch.load(folder / complete_steps(folder)[-1] / "state.pt", weights_only=True)
    # The end is the average itself.
    for name, value in state["model"].items():
        if name.endswith("num_batches_tracked"):
            continue
        assert torch.equal(state["average"][f"average.{name}"], value), name


def test_damaged_images_are_named_at_once_and_nothing_is_tried_again(tmp_path: Path) -> None:
    draw_images(tmp_path / "colours")
    damaged = [tmp_path / "colours" / "train" / "red" / f"{number}.jpg" for number in (5, 7)]
    for file in damaged:
        file.write_bytes(file.read_bytes()[:300])
    (tmp_path / "colours" / "train" / "red" / "notes.txt").write_text("no image")
    job = write_job(tmp_path, dataset="folder", path="colours", model="cnn", epochs=1)
    with hosts(tmp_path) as local:
        both = local.pair(job, "1:2", KIT_DATA=tmp_path)
        assert [task.wait() for task in both] == [2, 2]
    failures = [each for task in both for each in task.of(events.Failed) if each.rank is not None]
    assert {(each.kind, each.exit_code) for each in failures} == {("data", 2)}
    assert all(f"{file} cannot be decoded (" in failures[0].message for file in damaged)
    for task in both:
        assert "not used: files that end in .txt (1)" in task.text
        assert "in decode" not in task.text
        assert "is restarted" not in task.text
