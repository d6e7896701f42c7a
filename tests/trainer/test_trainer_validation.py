"""A validation part chooses the best checkpoint, and the test is measured once by it."""

import io
import json
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import distributed

from tests.trainer.hosts import write_job
from tests.trainer.test_trainer_checkpoint import parameters
from trainer.checkpoints.format import Progress
from trainer.checkpoints.layout import folder_name
from trainer.contract import event_lines, events
from trainer.contract.job import Train
from trainer.core.evaluation import best_weights
from trainer.core.job import load_job
from trainer.core.run import Run, Stop
from trainer.core.session import train
from trainer.core.setup import set_up
from trainer.core.state import save
from trainer.data.identity import identity
from trainer.data.load import load_data
from trainer.data.samples import DataError
from trainer.parallel.world import World, join_world
from trainer.record.telemetry import Evaluation
from trainer.text.windows import Windows


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    before = signal.getsignal(signal.SIGTERM)
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()
    signal.signal(signal.SIGTERM, before)


def settings(**changes: Any) -> Train:
    base: dict[str, Any] = {"dataset": "digits", "model": "cnn", "epochs": 3, "batch_size": 32}
    return Train(**{**base, **changes})


def rows(samples: Any) -> list[bytes]:
    return sorted(each.numpy().tobytes() for each in samples.inputs)


def test_a_share_of_each_class_leaves_the_training_and_not_the_test(tmp_path: Path) -> None:
    plain, data = (load_data(settings(validation=share), tmp_path) for share in (None, 0.1))
    assert data.validation is not None
    assert data.measured is data.validation
    assert plain.measured is plain.test
    assert rows(data.test) == rows(plain.test)
    assert sorted(rows(data.train) + rows(data.validation)) == rows(plain.train)
    held, all_labels = data.validation.labels.bincount(), plain.train.labels.bincount()
    assert ((held / all_labels - 0.1).abs() < 0.01).all()
    same = load_data(settings(validation=0.1, seed=5), tmp_path)
    other = load_data(settings(validation=0.1, split_seed=5), tmp_path)
    assert identity(same) == identity(data) != identity(other)


def test_the_end_of_a_text_validates(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(chr(97 + number % 26) for number in range(2000)))
    text = {"dataset": "text", "path": "a.txt", "model": "gpt", "context": 8}
    plain, data = (load_data(settings(validation=share, **text), tmp_path) for share in (None, 0.1))
    parts = (plain.train, data.train, data.validation)
    whole, rest, held = (part.tokens for part in parts if isinstance(part, Windows))
    assert (len(rest), len(held)) == (1620, 180)
    assert [*rest, *held] == [*whole]
    assert len({part.content for part in (*data.parts, plain.train)}) == 4


def draw(folder: Path, *parts: str) -> None:
    for part in parts:
        for name in ("cat", "dog"):
            (folder / "set" / part / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 8)).save(folder / "set" / part / name / f"{number}.png")


def test_a_folder_may_bring_its_validation(tmp_path: Path) -> None:
    draw(tmp_path, "train", "val", "test")
    folder = {"dataset": "folder", "path": "set", "image_size": 8}
    data: Any = load_data(settings(**folder), tmp_path)
    places = [{file.parts[-3] for file in part.files} for part in data.parts]
    assert places == [{"train"}, {"val"}, {"test"}]
    assert data.validation.view == data.test.view
    with pytest.raises(DataError, match="already has a validation part, 6 samples"):
        load_data(settings(validation=0.1, **folder), tmp_path)


def test_a_share_of_no_sample_is_refused(tmp_path: Path) -> None:
    draw(tmp_path, "train", "test")
    folder = {"dataset": "folder", "path": "set", "image_size": 8}
    (tmp_path / "set" / "train" / "dog" / "1.png").unlink()
    (tmp_path / "set" / "train" / "dog" / "2.png").unlink()
    (tmp_path / "set" / "train" / "cat" / "1.png").unlink()
    (tmp_path / "set" / "train" / "cat" / "2.png").unlink()
    with pytest.raises(DataError, match="leaves 0 samples for it, and 2 to train"):
        load_data(settings(validation=0.1, **folder), tmp_path)


@pytest.fixture
def run(world: World, tmp_path: Path) -> Run:
    job = load_job(write_job(tmp_path, validation=0.1, epochs=2, ema_decay=0.9))
    return set_up(job, world, load_data(job.train, tmp_path), tmp_path, 0.0)


def test_the_best_weights_are_there_for_a_while(run: Run) -> None:
    averages = []
    for step, accuracy in ((1, 0.9), (2, 0.5)):
        with torch.no_grad():
            for value in (*run.model.parameters(), *run.tested.parameters()):
                value.fill_(step)
        save(run, Progress(0, 0, step), Evaluation(9, 1.0, {"accuracy": accuracy}))
        run.saver.wait()
        averages.append({name: value.clone() for name, value in run.tested.state_dict().items()})
    own = parameters(run)
    with best_weights(run, folder_name(2)) as name:
        found = run.tested.state_dict()
        assert name == folder_name(1)
        assert all(torch.equal(found[each], averages[0][each]) for each in found)
    assert all(torch.equal(own[name], value) for name, value in run.model.state_dict().items())
    assert all(
        torch.equal(averages[1][name], value) for name, value in run.tested.state_dict().items()
    )
    with best_weights(run, folder_name(1)) as name:
        assert name == folder_name(1)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_test_is_measured_once_at_the_end(run: Run, tmp_path: Path) -> None:
    output = io.StringIO()
    with redirect_stdout(output):
        assert train(run, Stop()) == 0
    lines = output.getvalue().splitlines()
    figures = lines_of(tmp_path / "metrics.jsonl")
    epochs = [each for each in figures if each["event"] == "epoch"]
    assert [bool(each["test"]) for each in epochs] == [False, True]
    validation = len(run.data.measured)
    shares = [each["accuracy"] * validation for each in epochs]
    assert shares == pytest.approx([round(share) for share in shares])
    best = max(epochs, key=lambda each: each["accuracy"])
    tested, end = epochs[-1]["test"], figures[-1]
    assert epochs[-1]["best"] == folder_name(best["step"])
    assert tested["accuracy"] * 360 == pytest.approx(round(tested["accuracy"] * 360))
    assert end["accuracy"] == tested["accuracy"]
    found = [event for line in lines if (event := event_lines.parse(line))]
    last = [event for event in found if isinstance(event, events.Epoch)][-1]
    assert last.accuracy == tested["accuracy"]
    assert any(f"tested {epochs[-1]['best']}, the best of the validation, once" in x for x in lines)
    assert any(line.startswith("done: ") and f"/{epochs[-1]['best']}," in line for line in lines)
    record = lines_of(next(tmp_path.rglob("rank0.jsonl")))
    noted = [each["test"] for each in record if each["record"] == "epoch"]
    assert noted == [None, pytest.approx(tested, rel=1e-4)]
