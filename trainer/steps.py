"""The arithmetic of training: one optimizer step, one epoch, one evaluation."""

from __future__ import annotations

import math
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from trainer import shards
from trainer.checkpoint import Progress
from trainer.data import Crops

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

    from trainer.config import Train, TrainJob
    from trainer.data import DataSet
    from trainer.saving import Saver
    from trainer.world import World

EVALUATION_BATCH = 512
"""Test samples at a time: without gradients it decides about memory and nothing else."""


class Stop:
    """Remembers that this process was asked to end."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """From here on SIGTERM asks for an end after the present step.

        torchrun sends it to its workers when it is told to end, and also before it starts them
        anew because a host came or went; after 30 s it kills (--shutdown-timeout).
        """
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.requested = True


@dataclass(frozen=True)
class Run:
    """What stays the same through one training."""

    job: TrainJob
    world: World
    data: DataSet
    model: nn.Module
    replica: DistributedDataParallel
    """The model, wrapped so that gradients are averaged over all ranks."""
    optimizer: torch.optim.Optimizer
    checkpoints: Path
    """This host's folder of checkpoints."""
    started: float
    """time.monotonic() when the process began to work."""
    saver: Saver
    """Writes the checkpoints."""

    @property
    def global_batch(self) -> int:
        """Samples of a full optimizer step, over all ranks."""
        return self.job.train.batch_size * self.job.train.accumulation * self.world.size


@dataclass(frozen=True)
class Epoch:
    """How an epoch went, or the part of it that was left to do."""

    progress: Progress
    """Where training stands now."""
    interrupted: bool
    """Whether the ranks agreed to stop before its end."""
    loss: float = math.nan
    """Mean cross entropy per sample, nats."""
    images_per_second: float = math.nan
    """Over all ranks."""


def train_epoch(run: Run, progress: Progress, stop: Stop) -> Epoch:
    """Train from a position to the end of its epoch, or to the step at which any rank must stop."""
    samples, seed = len(run.data.train), run.job.train.seed
    order = shards.permutation(samples, seed, progress.epoch)
    crops = Crops.of_epoch(samples, seed, progress.epoch) if run.data.augmented else None
    run.model.train()
    loss = torch.zeros((), device=run.world.device)
    began, todo = time.monotonic(), samples - progress.position
    while progress.position < samples:
        run.saver.check()
        # Together, or some ranks would wait in the next step for those that have left.
        if run.world.any(stop.requested):
            return Epoch(progress, interrupted=True)
        batch = order[progress.position : progress.position + run.global_batch]
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.job.train, progress, samples)
        loss += train_step(run, batch, crops)
        progress = replace(
            progress, position=progress.position + len(batch), step=progress.step + 1
        )
    # Reading the loss waits until the device has done all steps, so it belongs to the time.
    total = run.world.sums([loss.item()])[0]
    return Epoch(
        Progress(progress.epoch + 1, 0, progress.step),
        interrupted=False,
        loss=total / todo,
        images_per_second=todo / (time.monotonic() - began),
    )


def train_step(run: Run, batch: Tensor, crops: Crops | None) -> Tensor:
    """One optimizer step on the mean loss of the samples `batch`, int64 [n], of all ranks.

    Returns:
        Sum of the losses of this rank's own samples, float32 scalar on its device.
    """
    own = shards.pieces(batch, run.world.rank, run.world.size, run.job.train.accumulation)
    # The replica averages gradients over ranks; this makes of it the mean over the samples, however
    # unevenly they are divided.
    weight = run.world.size / len(batch)
    if not own:
        # All ranks must take part in the exchange; this one adds nothing to it.
        own, weight = [batch[:1]], 0.0
    total = torch.zeros((), device=run.world.device)
    run.optimizer.zero_grad()
    for number, piece in enumerate(own, start=1):
        with nullcontext() if number == len(own) else run.replica.no_sync():
            loss = training_loss(run, piece, crops) * weight
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    run.optimizer.step()
    return total * len(batch) / run.world.size


def training_loss(run: Run, indices: Tensor, crops: Crops | None) -> Tensor:
    """Sum of the losses of the training samples `indices`, int64 [n]."""
    on_device = indices.to(run.world.device)
    images = run.data.train.images[on_device]
    if crops:
        images = crops.apply(images, indices)
    scores = run.replica(run.data.normalized(images))
    return functional.cross_entropy(scores, run.data.train.labels[on_device], reduction="sum")


def learning_rate(train: Train, progress: Progress, samples: int) -> float:
    """The rate of the next step.

    Cosine annealing without restarts (Loshchilov and Hutter 2016) over the share of all samples
    that is done: it needs no state and does not care if the world size changes.
    """
    if train.schedule == "constant":
        return train.learning_rate
    done = (progress.epoch + progress.position / samples) / train.epochs
    return train.learning_rate * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def evaluate(run: Run) -> tuple[int, int]:
    """Classify each test sample on exactly one rank; return (correct, all), the same everywhere."""
    run.world.share_buffers(run.model)
    run.model.eval()
    test = run.data.test
    own = shards.evaluation_shard(len(test), run.world.rank, run.world.size)
    correct = torch.zeros((), dtype=torch.int64, device=run.world.device)
    for part in torch.split(own.to(run.world.device), EVALUATION_BATCH):
        # The bare model: the replica would exchange, and ranks may have different numbers of parts.
        found = run.model(run.data.normalized(test.images[part])).argmax(dim=1)
        correct += (found == test.labels[part]).sum()
    right, seen = run.world.sums([correct.item(), len(own)])
    return int(right), int(seen)
