"""Epochs of this trainer in the process of a benchmark, one at a time, without its output."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoints.format import Progress
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.epoch import rehearse, train_epoch
from trainer.core.report import begin_record, place_of
from trainer.core.run import Run, Stop
from trainer.core.setup import set_up
from trainer.core.watch import speed_of
from trainer.data.samples import DataSet, Samples
from trainer.parallel.world import World

FOREVER = 10**6
"""More epochs than any benchmark reaches."""
FAR = 10_000
"""Steps that lie behind: in a training's first 250 the record has a line for each."""


class Epochs:
    """A training whose epochs are run by calls."""

    def __init__(self, world: World, data: DataSet, train: Train, folder: Path) -> None:
        """Set up a training and rehearse it; `folder` gets its record."""
        job = TrainJob("bench", train, Exchange(), Checkpoint(), Metrics())
        with redirect_stdout(io.StringIO()):
            self.run: Run = set_up(job, world, data, folder, time.monotonic())
            speed = speed_of(world, train, data, self.run.precision)
            self.run.announcer.speed = self.run.meter.speed = speed
            self._progress = Progress(0, 0, FAR)
            begin_record(self.run, self._progress, place_of(self.run, self._progress))
            rehearse(self.run)

    def __call__(self) -> None:
        """Train for one epoch; its last step may still run on the device."""
        with redirect_stdout(io.StringIO()):
            self._progress = train_epoch(self.run, self._progress, Stop()).progress


def timed(samples: int, work: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Return a function that does the work and returns its samples a second."""

    def work_timed() -> float:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return samples / (time.perf_counter() - began)

    return work_timed


def images_like(images: Tensor, labels: Tensor, *, side: int = 0) -> DataSet:
    """A data set of these images, without augmentation: uint8 [N, 3, S, S] and int64 [N]."""
    half = torch.full((3, 1, 1), 127.5)
    samples = Samples(images, labels)
    few = replace(samples, inputs=images[:64], labels=labels[:64])
    names = tuple(map(str, range(int(labels.max()) + 1)))
    return DataSet(samples, few, half, half.clone(), len(names), labels=names, side=side)
