"""What a job without any setting learns, beside plain loops with textbook settings.

    python -m tests.bench_defaults [case …] [--seeds 3] [--minutes 60]

A job gives a data set, a model, epochs and a batch. The plain loops have the same model, data and
steps, and are torch alone:

sgd    0.1 for a batch of 256, scaled linearly, momentum 0.9, weight decay 1e-4
adam   0.001
gpt    nanoGPT's: AdamW of 0.001, betas 0.9 and 0.99, weight decay 0.1, clipping to 1, to a tenth

All warm up for 5 % of their steps and follow a cosine. The data are scikit-learn's digits, also as
files of MNIST of 28 pixels, of CIFAR-10 of 32 pixels and as a folder of 16 pixels, and the text of
this documentation. A batch such as 8x4 is of four ranks with 8 samples each, in real processes; the
loops have its samples in one process. A row is behind if it is more than a point (of accuracy; 0.05
of loss) behind the better loop.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import statistics
import struct
import subprocess
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
    ranks: int = 1

    def __str__(self) -> str:
        """Its name."""
        return f"{self.model} {self.dataset} {self.epochs} {self.batches}"

    @property
    def batches(self) -> str:
        """The samples of a rank and, if there are several, how many ranks there are."""
        return f"{self.batch}x{self.ranks}" if self.ranks > 1 else f"{self.batch}"

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
    Case("airbench", "cifar10", 4, 64),
    *(Case("cnn", "digits", 20, each, ranks=ranks) for each, ranks in ((8, 2), (8, 8), (128, 4))),
    Case("resnet18", "folder", 3, 16, ranks=2),
    Case("gpt", "text", 1, 4, ("gpt",), ranks=3),
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
        pictures = functional.interpolate(images, (32, 32), mode="bilinear").byte()
        rows = torch.cat([samples.labels[:, None].byte(), pictures.flatten(1).repeat(1, 3)], 1)
        batches = [f"data_batch_{n}" for n in range(1, 6)] if part == "train" else ["test_batch"]
        (root / "cifar-10-batches-bin").mkdir(exist_ok=True)
        for batch, some in zip(batches, rows.chunk(len(batches)), strict=True):
            (root / "cifar-10-batches-bin" / f"{batch}.bin").write_bytes(some.numpy().tobytes())
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


def kit_ranks(case: Case, seed: int, root: Path) -> float:
    """Train by a job in several processes; return the same."""
    command = (
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"),
        *("--module", "tests.bench_defaults", str(case), "--rank", str(seed), str(root)),
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def be_a_rank(case: Case, seed: int, root: Path) -> None:
    """Train as one of several processes that torchrun has started; rank 0 prints the figure."""
    world = join_world({**os.environ, "KIT_HOST": "bench"}, timedelta(seconds=60))
    train = case.settings(seed)
    found = kit(world, load_data(train, root), train, root)
    if world.rank == 0:
        print(found)
    distributed.destroy_process_group()


def loop(way: str, data: DataSet, train: Train, batch: int) -> float:
    """Train by a plain loop; return the same."""
    torch.manual_seed(train.seed)
    model = build_model(train, data).train()
    draw = torch.Generator().manual_seed(train.seed)
    samples = len(data.train)
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
    cells = [f"{case.model}, {case.dataset}", f"{case.epochs}, {case.batches}", *cells]
    return f"| {' | '.join(cells)} | {'behind' if behind else 'held'} |"


def main() -> int:
    """Return 1 if a row is behind."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("cases", nargs="*", help="such as 'cnn digits 5 8', or 'cnn'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rank", nargs=2, metavar=("SEED", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        case = next(each for each in CASES if str(each) == given.cases[0])
        be_a_rank(case, int(given.rank[0]), Path(given.rank[1]))
        return 0
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
        single = case.ranks == 1
        found["kit"].append(
            kit(world, data, train, root) if single else kit_ranks(case, seed, root)
        )
        for way in case.loops:
            found[way].append(loop(way, data, train, case.batch * case.ranks))
    return found


if __name__ == "__main__":
    sys.exit(main())
