"""Compares the training of image classifiers with torchvision's own script: ratios of images/s.

    .tools/vision/bin/python -m tests.bench_vision loop --reference FOLDER [--model resnet18]
    .tools/vision/bin/python -m tests.bench_vision loading --reference FOLDER

FOLDER is references/classification of github.com/pytorch/vision.

loop       an epoch of this trainer and one of the script's, each the second of its process: the
           same JPEG files, model, augmentation (of the recipe of ResNet-50's IMAGENET1K_V2, without
           repeated augmentation, which the script only has on several GPUs) and precision
loading    files that one core decodes and augments, of this trainer and of the script's presets,
           and images that the model trains on all cores: how many cores keep ahead of it

The sides take turns. The ratio is the median of all turns, followed by the least and the greatest.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.trainer.hosts import ROOT, metrics, write_job
from tests.turns import compare, show, turns
from trainer.contract.job import Train
from trainer.data.decoding import decode
from trainer.data.pictures import View
from trainer.vision.classifiers import build
from trainer.vision.transforms import training_transform

WIDTH, HEIGHT = 500, 375
"""Pixels of a file: the usual ones of ImageNet."""
STEPS, BATCH, CLASSES = 20, 16, 10
"""Of an epoch. The script prints the mean time of the last 20 steps."""
EPOCHS = 2
RECIPE = {
    "--auto-augment": "ta_wide", "--random-erase": 0.1, "--mixup-alpha": 0.2, "--cutmix-alpha": 1.0,
    "--label-smoothing": 0.1, "--lr": 0.01, "--weight-decay": 0.00002, "--norm-weight-decay": 0.0,
    "--lr-scheduler": "cosineannealinglr", "--train-crop-size": 176, "--val-resize-size": 232,
}  # fmt: skip
OURS: dict[str, Any] = {
    "dataset": "folder", "path": "images", "augmentation": "trivial", "random_erasing": 0.1,
    "mixup": 0.2, "cutmix": 1.0, "label_smoothing": 0.1, "learning_rate": 0.01, "nesterov": False,
    "weight_decay": 0.00002, "norm_weight_decay": 0.0, "image_size": 176, "test_image_size": 224,
    "test_resize": 232, "interpolation": "bilinear", "ema_decay": 0.99998, "precision": "fp32",
    "epochs": EPOCHS, "batch_size": BATCH,
}  # fmt: skip


def write_images(folder: Path) -> list[Path]:
    """Photographs by a program: smooth colours and noise, with about the bytes of ImageNet's."""
    draw, files = np.random.default_rng(0), []
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    for part, count in (("train", STEPS * BATCH), ("val", CLASSES)):
        for number in range(count):
            place = folder / part / f"class{number % CLASSES}"
            place.mkdir(parents=True, exist_ok=True)
            waves = [
                np.sin(rows / (9 + number % 7) + n) + np.cos(columns / 11 + n) for n in (0, 1, 2)
            ]
            pixels = np.stack(waves, axis=-1) * 55 + 128 + draw.normal(0, 14, (HEIGHT, WIDTH, 3))
            file = place / f"{number}.jpg"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=90)
            files += [file] if part == "train" else []
    return files


def loop(folder: Path, reference: Path, model: str, repeats: int) -> None:
    """Let both train."""
    cores = str(os.cpu_count())
    job = write_job(folder, "bench", **OURS, model=f"torchvision/{model}", every_epochs=EPOCHS)
    own = {"KIT_JOB": str(job), "KIT_DATA": str(folder), "PYTHONPATH": str(ROOT)}

    def this() -> float:
        place = Path(tempfile.mkdtemp(dir=folder))
        run(["-m", "trainer.train"], own | {"KIT_CHECKPOINTS": str(place)}, folder)
        rate: float = [line for line in metrics(place) if line["event"] == "epoch"][-1][
            "images_per_second"
        ]
        return rate

    def script() -> float:
        options = [str(each) for pair in RECIPE.items() for each in pair]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        text = run(
            [
                *(str(reference / "train.py"), "--data-path", str(folder / "images")),
                *("--device", device, "--model", model, "--batch-size", str(BATCH)),
                *("--epochs", str(EPOCHS), "--workers", cores, "--print-freq", "1"),
                *("--output-dir", "", "--model-ema", *options),
            ],
            {},
            folder,
        )
        last = rf"Epoch: \[{EPOCHS - 1}\]\s+\[{STEPS - 1}/{STEPS}\].*time: ([\d.]+)"
        return BATCH / float(re.findall(last, text)[-1])

    print(f"loop: {model}, {STEPS * BATCH} JPEG files of {WIDTH}x{HEIGHT}, batch {BATCH}, fp32")
    found = turns(repeats, {"torchvision's script": script, "this trainer": this})
    for side, rates in found.items():
        show(side, rates)
    ours, theirs = found["this trainer"], found["torchvision's script"]
    compare("this trainer / torchvision's script", ours, theirs, "images/s, aim >= 1.0")


def run(arguments: list[str], environ: dict[str, str], folder: Path) -> str:
    """Run Python; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environ},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def loading(files: list[Path], reference: Path, model: str, repeats: int) -> None:
    """Compare what one core prepares with what all cores train."""
    sys.path.insert(0, str(reference))
    import presets  # type: ignore[import-not-found]  # Of the script.

    job = Train(**{**OURS, "model": f"torchvision/{model}"})
    transform, view = training_transform(job), View(job.image_size)
    preset = presets.ClassificationPresetTrain(
        crop_size=job.image_size, auto_augment_policy="ta_wide", random_erase_prob=0.1
    )
    cores = torch.get_num_threads()
    some = files[: 8 * BATCH]

    def single(work: Callable[[Path], object]) -> Callable[[], float]:
        def side() -> float:
            torch.set_num_threads(1)
            began = time.perf_counter()
            for file in some:
                work(file)
            return len(some) / (time.perf_counter() - began)

        return side

    def train() -> float:
        torch.set_num_threads(cores)
        return train_rate(model, job.image_size)

    print(f"loading: {WIDTH}x{HEIGHT} to {job.image_size}, on one core; {model} on {cores}")
    sides = {
        "torchvision's preset, one core": single(lambda file: preset(opened(file))),
        "this trainer, one core": single(lambda file: decode(file, view, transform)),
        f"training step of {model}, {cores} cores": train,
    }
    found = turns(repeats, sides)
    for side, rates in found.items():
        show(side, rates)
    theirs, ours, trained = found.values()
    compare("this trainer / torchvision's preset", ours, theirs, "images/s, aim >= 1.0")
    share = statistics.median(trained) / statistics.median(ours)
    print(f"  cores that decode for this model: {share:.2f}")


def opened(file: Path) -> Image.Image:
    """Open a file as torchvision's ImageFolder does."""
    with file.open("rb") as stream:
        return Image.open(stream).convert("RGB")


def train_rate(model: str, side: int) -> float:
    """Images a second of forward and backward, without data."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    built = build(f"torchvision/{model}", CLASSES, side).to(device)
    images = torch.randn(BATCH, 3, side, side, device=device)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        built(images).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return BATCH / statistics.median(times[2:])


def main() -> None:
    """Run the named benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", choices=("loop", "loading"))
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--repeats", type=int, default=3)
    known = parser.parse_args()
    reference = known.reference.resolve()
    if not (reference / "train.py").is_file():
        parser.error(f"{reference} has no train.py; give references/classification of a clone")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_images(folder / "images")
        size = statistics.fmean(file.stat().st_size for file in files) / 1000
        print(f"files of {size:.0f} kB")
        if known.name == "loop":
            loop(folder, reference, known.model, known.repeats)
        else:
            loading(files, reference, known.model, known.repeats)


if __name__ == "__main__":
    main()
