"""From a folder of pictures to answers: trained on two ranks, stopped, resumed and served."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image

from tests.trainer.hosts import Hosts, Task, complete_steps, hosts, wait_until, write_job
from tests.trainer.servers import start
from tests.trainer.small import noise
from trainer.contract import events
from trainer.contract.job import Train
from trainer.core.alike import describe
from trainer.core.job import load_job
from trainer.data.images import ImageFiles
from trainer.data.load import load_data
from trainer.vision.classifiers import build

MODEL = "torchvision/shufflenet_v2_x0_5"
COLOURS = {"blue": (30, 40, 210), "green": (30, 190, 40), "red": (210, 40, 30)}


def draw_pictures(folder: Path) -> None:
    """Photographs of any size, portrait and landscape."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for name, colour in COLOURS.items():
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                width, height = (int(side) for side in draw.integers(70, 200, 2))
                noise = draw.normal(0, 40, (height, width, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.jpg")


def pets(folder: Path, name: str = "pets", **changes: Any) -> Path:
    train: dict[str, Any] = {
        "dataset": "folder", "path": "pets", "image_size": 64, "model": MODEL, "batch_size": 3,
        "learning_rate": 0.01, "epochs": 6, "augmentation": "trivial", "weights": "start.pth",
    }  # fmt: skip
    return write_job(folder, name, **{**train, **changes})


def launch(local: Hosts, job: Path, checkpoints: str, endpoint: str, **more: Any) -> Task:
    return local.agent(checkpoints, job, endpoint, 2, KIT_DATA=local.folder, **more)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / complete_steps(folder)[-1] / "state.pt", weights_only=True)
    model: dict[str, torch.Tensor] = state["model"]
    return model


def test_a_folder_trains_on_two_ranks_resumes_and_is_served(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "pets")
    torch.manual_seed(5)
    torch.save(build(MODEL, 1000, 64).state_dict(), tmp_path / "start.pth")
    with hosts(tmp_path) as local:
        whole = launch(local, pets(tmp_path), "whole", local.rendezvous("1:1"))
        assert whole.wait() == 0, whole.text
        # Random crops and policies, drawn by worker processes, are the same after a stop.
        task = launch(local, pets(tmp_path), "parts", local.rendezvous("1:1"))
        wait_until(lambda: bool(task.of(events.Saved)), "a checkpoint")
        task.process.terminate()
        task.wait()
        resumed = launch(local, pets(tmp_path), "parts", local.rendezvous("1:1"))
        assert resumed.wait() == 0, resumed.text
        assert "resumes at step" in resumed.text
        first, second = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
        for name, value in first.items():
            assert torch.equal(value, second[name]), name

        step = tmp_path / "whole" / complete_steps(tmp_path / "whole")[-1]
        manifest = json.loads((step / "manifest.json").read_text())
        assert manifest["job"]["model"] == MODEL
        assert manifest["serving"]["input"]["side"] == 64
        assert manifest["serving"]["labels"] == sorted(COLOURS)
        # torchvision can load the trained weights.
        model = build(MODEL, 3, 64).eval()
        model.load_state_dict(first)
    # Its decoders must not inherit the memory of torch, as they would from a warm Python.
    with hosts(tmp_path, cold=True) as local:
        server = start(local, tmp_path / "whole", job="pets")
        files = sorted((tmp_path / "pets" / "test").glob("*/*.jpg"))
        read = load_data(Train(**job_of(manifest)), tmp_path)
        assert isinstance(read.test, ImageFiles)
        assert read.test.files == files
        images, _ = read.test.take(torch.arange(len(files)), torch.device("cpu"))
        with torch.inference_mode():
            expected = model(read.prepared(images)).softmax(dim=1)
        for number, file in enumerate(files):
            answer = server.image(file.read_bytes())
            assert answer.status == 200, answer.body
            for each in answer.json["predictions"][0]["classes"]:
                probability = float(expected[number, each["index"]])
                assert abs(each["probability"] - probability) < 1e-4


def job_of(manifest: dict[str, Any]) -> dict[str, Any]:
    keys = ("dataset", "path", "image_size", "model", "seed")
    return {key: manifest["job"][key] for key in keys} | {"epochs": 1, "batch_size": 1}


def test_digits_become_colour_images_and_mistakes_end_at_once(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, "small", model=MODEL, batch_size=700, epochs=1)
        task = launch(local, job, "small", local.rendezvous("1:1"))
        assert task.wait() == 0, task.text
        assert describe(load_job(job), "n1", noise(1, 8), tmp_path)["torch"] == {
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        }
        text = "images of 1×8×8 become inputs of 3×64×64, their channel three times"
        assert text in task.text
        job = pets(
            tmp_path,
            "wrong",
            dataset="digits",
            path="",
            image_size=32,
            model="torchvision/resnet_18",
            weights=None,
            augmentation=None,
        )
        task = launch(local, job, "wrong", local.rendezvous("1:1"))
        assert task.wait() == 2, task.text
        assert "has no resnet_18; did you mean resnet18?" in task.text
        assert len(task.of(events.Failed)) == 1
        assert not task.of(events.Restart)
