"""Recipes at a small size, and all that they use: trained, resumed, tested and served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torchvision.transforms._presets import ImageClassification

from tests.sandbox import ROOT
from tests.trainer.hosts import Task, complete_steps, hosts, metrics, write_job
from tests.trainer.servers import start
from tests.vision.test_training import COLOURS, draw_pictures, launch
from trainer.contract import events
from trainer.vision.classifiers import build

MODEL = "torchvision/shufflenet_v2_x0_5"
FULL: dict[str, Any] = {
    "dataset": "folder", "path": "pets", "model": MODEL, "image_size": 64,
    "test_image_size": 96, "test_resize": 112, "interpolation": "bilinear", "crop_scale": 0.3,
    "augmentation": "trivial", "repeated_augmentation": 2, "random_erasing": 0.2, "mixup": 0.2,
    "cutmix": 1.0, "label_smoothing": 0.1, "epochs": 8, "batch_size": 3, "global_batch": 6,
    "nesterov": False, "learning_rate": 0.05, "weight_decay": 0.0001, "norm_weight_decay": 0.0,
    "warm_up": 0.1, "warm_up_start": 0.01, "ema_decay": 0.9,
}  # fmt: skip


def state_of(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    step = folder / complete_steps(folder)[-1]
    found: dict[str, dict[str, torch.Tensor]] = torch.load(step / "state.pt", weights_only=True)
    return found


def averages(folder: Path) -> dict[str, torch.Tensor]:
    found = state_of(folder)["average"]
    return {name.removeprefix("average."): value for name, value in found.items()}


def test_the_average_is_tested_and_served_with_torchvisions_transform(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "pets")
    with hosts(tmp_path) as local:
        task = launch(local, write_job(tmp_path, "pets", **FULL), "a", local.rendezvous("1:1"))
        assert task.wait() == 0, task.text
    model = build(MODEL, 3, 64).eval()
    model.load_state_dict(averages(tmp_path / "a"))
    transform = ImageClassification(crop_size=96, resize_size=112)
    files = sorted((tmp_path / "pets" / "test").glob("*/*.jpg"))
    with torch.inference_mode():
        batch = torch.stack([transform(Image.open(file)) for file in files])
        expected = model(batch)
    labels = torch.tensor([sorted(COLOURS).index(file.parent.name) for file in files])
    right = expected.argmax(dim=1) == labels
    # The accuracies are those of the average, exact on two ranks.
    last = task.of(events.Epoch)[-1]
    assert last.accuracy == pytest.approx(float(right.double().mean()))
    assert last.class_accuracy == {
        name: pytest.approx(float(right[labels == number].double().mean()))
        for number, name in enumerate(sorted(COLOURS))
    }
    assert last.class_samples == dict.fromkeys(COLOURS, 2)
    assert last.top5_accuracy is None
    loss = torch.nn.functional.cross_entropy(expected, labels)
    assert metrics(tmp_path / "a")[-1]["validation_loss"] == pytest.approx(float(loss), rel=1e-4)
    with hosts(tmp_path, cold=True) as local:
        server = start(local, tmp_path / "a", job="pets")
        shares = expected.softmax(dim=1)
        for number, file in enumerate(files):
            for each in server.image(file.read_bytes()).json["predictions"][0]["classes"]:
                share = float(shares[number, each["index"]])
                assert each["probability"] == pytest.approx(share, abs=1e-5)


def test_a_stop_and_another_number_of_ranks_change_nothing(tmp_path: Path) -> None:
    """LayerNorm alone: BatchNorm sees the samples of its rank."""
    draw_pictures(tmp_path / "pets")
    job = {**FULL, "model": "torchvision/convnext_tiny", "epochs": 2, "batch_size": 4}
    job |= {"global_batch": 6, "learning_rate": 0.001}
    # One tensor of many has other roundings on other divisions of a batch.
    with hosts(tmp_path) as local:
        two = launch(local, write_job(tmp_path, "two", **job), "two", local.rendezvous("1:1"))
        assert two.wait() == 0, two.text
        file = write_job(tmp_path, "one", **job)
        endpoint = local.rendezvous("1:1")
        one = local.agent("one", file, endpoint, 1, KIT_DATA=tmp_path)
        assert one.wait() == 0, one.text
    first, second = averages(tmp_path / "two"), averages(tmp_path / "one")
    drift = max(float((first[name] - second[name]).abs().max()) for name in first)
    assert drift < 1e-4
    moved = build("torchvision/convnext_tiny", 3, 64).state_dict()
    assert any(not torch.equal(value, first[name]) for name, value in moved.items())


def test_frozen_layers_stay_as_they_are(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "pets")
    torch.manual_seed(5)
    start = build(MODEL, 3, 64)
    torch.save(start.state_dict(), tmp_path / "start.pth")
    changes = {"epochs": 2, "weights": "start.pth", "freeze": ["backbone"], "ema_decay": None}
    job = {key: value for key, value in (FULL | changes).items() if value is not None}
    with hosts(tmp_path) as local:
        task = launch(local, write_job(tmp_path, "pets", **job), "a", local.rendezvous("1:1"))
        assert task.wait() == 0, task.text
        assert "of 3,075 parameters" in task.text
        wrong = write_job(tmp_path, "wrong", **{**job, "freeze": ["conv1", "stag2"]})
        other: Task = launch(local, wrong, "b", local.rendezvous("1:1"))
        assert other.wait() == 2, other.text
        assert "train.freeze: the model has no layer stag2; did you mean stage2?" in other.text
    trained = state_of(tmp_path / "a")["model"]
    for name, value in start.state_dict().items():
        assert torch.equal(trained[name], value) is not name.startswith("fc."), name


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16"])
def test_a_recipe_trains_at_a_small_size(name: str, tmp_path: Path) -> None:
    draw_pictures(tmp_path / "pets")
    recipe = yaml.safe_load((ROOT / "docs" / "recipes" / f"{name}.yaml").read_text())["train"]
    small: dict[str, Any] = {"path": "pets", "epochs": 1, "batch_size": 3, "global_batch": 9}
    small |= {"image_size": 64, "test_image_size": 80, "test_resize": 88} if name[0] == "r" else {}
    with hosts(tmp_path) as local:
        file = write_job(tmp_path, name, **{**recipe, **small})
        task = local.agent("a", file, local.rendezvous("1:1"), 1, KIT_DATA=tmp_path)
        assert task.wait() == 0, task.text
    assert "18 samples of folder, global batch 9 = at most 3 x 1 processes x 3" in task.text
    manifest = json.loads(
        (tmp_path / "a" / complete_steps(tmp_path / "a")[-1] / "manifest.json").read_text()
    )
    assert manifest["job"]["ema_decay"] == recipe["ema_decay"]
    assert task.of(events.Epoch)[-1].accuracy is not None
