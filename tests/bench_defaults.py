"""What a job without any setting learns, beside plain loops with textbook settings.

    python -m tests.bench_defaults [case …] [--seeds 3] [--minutes 60]

A job gives a data set, a model, epochs and a batch. The plain loops have the same model, data and
steps, and are torch alone:

sgd    0.1 for a batch of 256, scaled linearly, momentum 0.9, weight decay 1e-4
adam   0.001
gpt    nanoGPT's: AdamW of 0.001, betas 0.9 and 0.99, weight decay 0.1, clipping to 1, to a tenth

All warm up for 5 % of their steps and follow a cosine. The data are scikit-learn's digits, also as
files of MNIST of 28 pixels and as a folder of 16 pixels, and the text of this documentation. A row
is behind if it is more than a point (of accuracy; 0.05 of loss) behind the better loop.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import struct
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image
from torch import Tensor, distributed, nn
from torch.nn import functional

from tests.trainer.hosts import ROOT
from trainer.checkpoints.format import Progress
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.epoch import train_epoch
from trainer.core.evaluation import evaluate
from trainer.core.models import build_model
from trainer.core.run import Stop
from trainer.core.setup import set_up
from trainer.data.load import load_data
from trainer.data.samples import DataSet
from trainer.parallel.world import World, join_world


@dataclass(frozen=True)
class Case:
    """A job and the loops beside it."""

    model: str
    dataset: str
    epochs: int
    batch: int
    loops: tuple[str, ...] = ("sgd", "adam")

    def __str__(self) -> str:
        """Its name."""
        return f"{self.model} {self.dataset} {self.epochs} {self.batch}"

    @property
    def text(self) -> bool:
        """Whether the figure is a loss."""
        return self.model == "gpt"

    def settings(self, seed: int) -> Train:
        """The job: nothing but what a beginner writes."""
        places = {"folder": "folder", "text": "text.txt"}
        more: dict[str, Any] = {"image_size": 16} if self.dataset == "folder" else {}
        return Train(
            dataset=self.dataset, model=self.model, epochs=self.epochs, batch_size=self.batch,
            path=places.get(self.dataset, ""), seed=seed, **more,
        )  # fmt: skip


CASES = [
    *(Case("cnn", "digits", *each) for each in ((5, 8), (20, 8), (5, 32), (20, 32), (50, 32))),
    *(Case("cnn", "digits", *each) for each in ((200, 32), (5, 512), (20, 512), (50, 1024))),
    *(Case("lenet", "mnist", *each) for each in ((5, 8), (5, 32), (20, 32), (20, 512))),
    *(Case("resnet18", "folder", *each) for each in ((3, 32), (5, 128))),
    *(Case("gpt", "text", *each, ("gpt",)) for each in ((1, 8), (2, 12), (4, 64), (8, 256))),
]


def write_data(root: Path) -> None:
    """Write digits as files of MNIST and as a folder, and a text."""
    data = load_data(Train(dataset="digits", model="cnn", epochs=1, batch_size=1), root)
    for part, name, samples in (("train", "train", data.train), ("t10k", "test", data.test)):
        images = samples.inputs * (255 / 16)
        large = functional.interpolate(images, (28, 28), mode="bilinear").byte()[:, 0]
        kinds = {"images-idx3": large, "labels-idx1": samples.labels.byte()}
        for kind, content in kinds.items():
            head = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
            (root / f"{part}-{kind}-ubyte").write_bytes(head + content.numpy().tobytes())
        small = functional.interpolate(images, (16, 16), mode="bilinear").byte()[:, 0]
        for number, (image, label) in enumerate(zip(small, samples.labels.tolist(), strict=True)):
            place = root / "folder" / name / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.numpy()).save(place / f"{number}.png")
    pages = sorted(ROOT.glob("docs/**/*.md"))
    (root / "text.txt").write_text("".join(each.read_text() for each in pages)[:350_000])


def kit(world: World, data: DataSet, train: Train, folder: Path) -> float:
    """Train by a job; return the accuracy in percent, or a text's loss."""
    job = TrainJob("bench", train, Exchange(), Checkpoint(), Metrics())
    progress = Progress()
    with redirect_stdout(io.StringIO()):
        run = replace(set_up(job, world, data, folder, time.monotonic()), recorder=mock.Mock())
        while progress.epoch < train.epochs:
            progress = train_epoch(run, progress, Stop()).progress
    found = evaluate(run, run.data.test)
    return found.loss if data.text else 100 * (found.accuracy or 0)


def loop(way: str, data: DataSet, train: Train) -> float:
    """Train by a plain loop; return the same."""
    torch.manual_seed(train.seed)
    model = build_model(train, data).train()
    draw = torch.Generator().manual_seed(train.seed)
    samples, batch = len(data.train), train.batch_size
    steps = math.ceil(samples / batch) * train.epochs
    optimizer, end = plain_optimizer(way, model, batch)
    base, step = optimizer.param_groups[0]["lr"], 0
    for epoch in range(train.epochs):
        order = data.train.order(train.seed, epoch) if data.text else None
        order = torch.randperm(samples, generator=draw) if order is None else order
        for part in torch.split(order, batch):
            share = step / steps
            height = end + (1 - end) * (1 + math.cos(math.pi * share)) / 2
            rate = base * min(1.0, (step + 1) / (0.05 * steps)) * height
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = functional.cross_entropy(*scored(model, data, data.train, part))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if way == "gpt":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
    return tested(model.eval(), data)


def plain_optimizer(way: str, model: nn.Module, batch: int) -> tuple[torch.optim.Optimizer, float]:
    """Return the optimizer of a plain loop, and the share of its rate at the end."""
    weights = list(model.parameters())
    if way == "sgd":
        return torch.optim.SGD(weights, 0.1 * batch / 256, momentum=0.9, weight_decay=1e-4), 0.0
    if way == "adam":
        return torch.optim.Adam(weights, 1e-3), 0.0
    return torch.optim.AdamW(weights, 1e-3, betas=(0.9, 0.99), weight_decay=0.1), 0.1


def scored(model: nn.Module, data: DataSet, part: Any, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The scores and the labels of some samples."""
    inputs, labels = part.take(indices, torch.device("cpu"))
    return model(data.prepared(inputs)), labels


@torch.no_grad()
def tested(model: nn.Module, data: DataSet) -> float:
    """The accuracy in percent of the test samples, or a text's loss."""
    total, count = 0.0, 0
    for part in torch.split(torch.arange(len(data.test)), 128):
        scores, labels = scored(model, data, data.test, part)
        if data.text:
            total += functional.cross_entropy(scores, labels, reduction="sum").item()
        else:
            total += float((scores.argmax(dim=1) == labels).sum())
        count += labels.numel()
    return total / count if data.text else 100 * total / count


def row(case: Case, found: dict[str, list[float]]) -> str:
    """A row of the table: all seeds, and whether it is behind."""
    digits = 2 if case.text else 1
    means = {side: statistics.fmean(values) for side, values in found.items()}
    others = [mean for side, mean in means.items() if side != "kit"]
    gap = means["kit"] - min(others) if case.text else max(others) - means["kit"]
    behind = gap > (0.05 if case.text else 1.0)
    cells = [", ".join(f"{value:.{digits}f}" for value in values) for values in found.values()]
    cells += ["–"] * (3 - len(cells))
    cells = [f"{case.model}, {case.dataset}", f"{case.epochs}, {case.batch}", *cells]
    return f"| {' | '.join(cells)} | {'behind' if behind else 'held'} |"


def main() -> int:
    """Return 1 if a row is behind."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("cases", nargs="*", help="such as 'cnn digits 5 8', or 'cnn'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if not given.cases or any(str(case).startswith(each) for each in given.cases)
    ]
    until, bad = time.monotonic() + 60 * given.minutes, 0
    world = join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))
    print("| model, data | epochs, batch | kit, by seed | sgd, or gpt | adam | |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_data(root)
        for case in chosen:
            if time.monotonic() > until:
                print(f"no time was left for {case} and what follows it")
                break
            found = measured(case, given.seeds, world, root)
            print(line := row(case, found), flush=True)
            bad += line.endswith("behind |")
    distributed.destroy_process_group()
    return 1 if bad else 0


def measured(case: Case, seeds: int, world: World, root: Path) -> dict[str, list[float]]:
    """Train each side with each seed."""
    found: dict[str, list[float]] = {side: [] for side in ("kit", *case.loops)}
    for seed in range(seeds):
        train = case.settings(seed)
        data = load_data(train, root)
        found["kit"].append(kit(world, data, train, root))
        for way in case.loops:
            found[way].append(loop(way, data, train))
    return found


if __name__ == "__main__":
    sys.exit(main())
