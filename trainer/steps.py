"""The arithmetic of training: one optimizer step, one epoch, one evaluation."""

from __future__ import annotations

import math
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from trainer import shards
from trainer.agreement import HaltError
from trainer.checkpoint import Progress
from trainer.data import Crops
from trainer.report import complain
from trainer.watch import Sight, look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

    from trainer.config import Train, TrainJob
    from trainer.data import DataSet
    from trainer.saving import Saver
    from trainer.watch import Watch
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
    watch: Watch
    """Tells where the time goes."""

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
    loss: float | None = None
    """Mean cross entropy per sample, nats."""
    images_per_second: float | None = None
    """Over all ranks."""
    skipped: tuple[int, ...] = ()
    """Steps whose update was left out because a loss was not finite."""
    sight: Sight = Sight({}, {})  # noqa: RUF009
    """Where the time went."""


@dataclass(frozen=True)
class Step:
    """How a step went."""

    loss: Tensor
    """Sum of the losses of this rank's own samples, float32 scalar on its device."""
    stopping: bool = False
    """Whether any rank was asked to end."""
    suspects: tuple[str, ...] = ()
    """Ranks whose loss was not finite, their hosts and samples; then nothing was updated."""


def train_epoch(run: Run, progress: Progress, stop: Stop) -> Epoch:
    """Train from a position to the end of its epoch, or to the step at which any rank must stop.

    Raises:
        HaltError: A loss was not finite, and the job says that this ends it; on all ranks.
    """
    samples, seed = len(run.data.train), run.job.train.seed
    order = shards.permutation(samples, seed, progress.epoch)
    crops = None
    if run.data.padding:
        crops = Crops.of_epoch(samples, seed, progress.epoch, run.data.padding)
    run.model.train()
    step = Step(torch.zeros((), device=run.world.device))
    loss = step.loss
    began, todo = time.monotonic(), samples - progress.position
    run.watch.mark("compute")
    skipped: tuple[int, ...] = ()
    while progress.position < samples and not step.stopping:
        run.saver.check()
        batch = order[progress.position : progress.position + run.global_batch]
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.job.train, progress, samples)
        step = train_step(run, batch, crops, stop)
        done = progress.position + len(batch)
        progress = Progress(progress.epoch, done, progress.step + 1)
        if step.suspects:
            skip_or_halt(run, progress, step)
            skipped, todo = (*skipped, progress.step), todo - len(batch)
        loss += step.loss
    if progress.position < samples:
        return Epoch(progress, interrupted=True, skipped=skipped)
    # Reading the loss waits until the device has done all steps, so it belongs to the time.
    total, seconds = run.world.sums([loss.item()])[0], time.monotonic() - began
    return Epoch(
        Progress(progress.epoch + 1, 0, progress.step),
        interrupted=step.stopping,
        loss=total / max(todo, 1),
        images_per_second=todo / seconds,
        skipped=skipped,
        sight=look(run.world, run.watch),
    )


def skip_or_halt(run: Run, progress: Progress, step: Step) -> None:
    """Say which loss was not finite and, unless the job says to skip such steps, end."""
    where = f"in step {progress.step}, epoch {progress.epoch + 1}: {'; '.join(step.suspects)}"
    if run.job.train.on_nan == "stop":
        raise HaltError(f"the loss is not finite {where}")
    if run.world.rank == 0:
        complain(f"trainer: warning: skips an update, the loss is not finite {where}")


def train_step(run: Run, batch: Tensor, crops: Crops | None, stop: Stop) -> Step:
    """One optimizer step on the mean loss of the samples `batch`, int64 [n], of all ranks."""
    own = shards.pieces(batch, run.world.rank, run.world.size, run.job.train.accumulation)
    # The replica averages gradients over ranks; this makes of it the mean over the samples, however
    # unevenly they are divided.
    weight = run.world.size / len(batch)
    if not own:
        # All ranks must take part in the exchange; this one adds nothing to it.
        own, weight = [batch[:1]], 0.0
    can_skip = run.job.train.on_nan == "skip"
    buffers = [buffer.clone() for buffer in run.model.buffers()] if can_skip else []
    losses: list[Tensor] = []
    run.optimizer.zero_grad()
    for number, piece in enumerate(own, start=1):
        with nullcontext() if number == len(own) else run.replica.no_sync():
            loss = training_loss(run, piece, crops) * weight
            losses.append(loss.detach())
            if number == len(own):
                finite = fetch(torch.isfinite(torch.stack(losses)))
            loss.backward()  # type: ignore[no-untyped-call]
            run.watch.mark("communication" if number == len(own) else "compute")
    flags = finite()
    # All ranks end at the same step, or some would wait for those that have left.
    asked, broken = run.world.sums([stop.requested, not flags.all()])
    run.watch.mark("communication")
    if not broken:
        run.optimizer.step()
        run.watch.mark("compute")
        return Step(torch.stack(losses).sum() * len(batch) / run.world.size, asked > 0)
    for buffer, before in zip(run.model.buffers(), buffers, strict=False):
        buffer.copy_(before)
    bad = next((piece for piece, flag in zip(own, flags, strict=True) if not flag), None)
    own_word = "" if bad is None else f"{run.world.name}, samples {bad.tolist()}"
    words = run.world.gather(own_word)
    return Step(torch.zeros_like(losses[0]), asked > 0, tuple(filter(None, words)))


def fetch(flags: Tensor) -> Callable[[], Tensor]:
    """Begin to copy to the CPU; the result waits for it, but not for what is queued behind it."""
    if not flags.is_cuda:
        return lambda: flags
    copy = torch.empty_like(flags, device="cpu", pin_memory=True).copy_(flags, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copy

    return wait


def training_loss(run: Run, indices: Tensor, crops: Crops | None) -> Tensor:
    """Sum of the losses of the training samples `indices`, int64 [n]."""
    images, labels = run.data.train.take(indices, run.world.device)
    if crops:
        images = crops.apply(images, indices)
    images = run.data.prepared(images)
    run.watch.mark("data")
    scores = run.replica(images)
    return functional.cross_entropy(scores, labels, reduction="sum")


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
    for part in torch.split(own, EVALUATION_BATCH):
        # The bare model: the replica would exchange, and ranks may have different numbers of parts.
        inputs, labels = test.take(part, run.world.device)
        found = run.model(run.data.prepared(inputs)).argmax(dim=1)
        correct += (found == labels).sum()
    right, seen = run.world.sums([correct.item(), len(own)])
    return int(right), int(seen)
