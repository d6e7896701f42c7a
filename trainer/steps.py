"""The arithmetic of training: one optimizer step, one epoch, one evaluation."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainer import shards
from trainer.checkpoint import Progress
from trainer.contract.job import Train, TrainJob
from trainer.data import Crops, DataSet
from trainer.exchange import LocalSteps
from trainer.models import Lookahead, flip_scores
from trainer.precision import autocast
from trainer.report import Live, complain
from trainer.watch import Balance, Watch, look
from trainer.world import HaltError, World

if TYPE_CHECKING:
    from trainer.saving import Saver

EVALUATION_BATCH = 512  # Without gradients it decides about memory and nothing else.
TRIANGLE = (0.2, 0.23, 0.07)
"""Share of the rate at the start, share of the training at which it is whole, share of the rate at
the end: those of cifar10-airbench (Jordan 2024, arXiv 2404.00498)."""


class Stop:
    """Remembers that this process was asked to end, after the present step, by SIGTERM.

    torchrun sends it to its workers when it is told to end, and also before it starts them anew
    because a host came or went; after 30 s it kills (--shutdown-timeout).
    """

    requested = False

    def listen(self) -> None:
        """Listen from now on."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "requested", True))


@dataclass(frozen=True)
class Run:
    """What stays the same through one training."""

    job: TrainJob
    world: World
    data: DataSet
    model: nn.Module
    replica: DistributedDataParallel  # The model, wrapped so that gradients are averaged.
    optimizer: torch.optim.Optimizer
    local: LocalSteps | None  # Where ranks train on their own for some steps.
    average: Lookahead | None  # Of the weights, where the job wants it.
    precision: str  # fp32, bf16 or fp16.
    scaler: Any  # torch's GradScaler; it does nothing unless fp16 needs it.
    checkpoints: Path  # This host's folder.
    started: float  # time.monotonic() when the process began to work.
    saver: Saver
    watch: Watch
    balance: Balance
    live: Live

    def pieces(self, batch: Tensor) -> list[Tensor]:
        """This rank's micro-batches of the global batch int64 [n]."""
        steps = self.job.train.accumulation
        return shards.pieces(batch, self.world.rank, self.balance.shares, steps)

    @property
    def global_batch(self) -> int:
        """Samples of a full optimizer step, over all ranks."""
        return self.job.train.batch_size * self.job.train.accumulation * self.world.size

    def parts(self) -> dict[str, Any]:
        """What has a state that a checkpoint must hold."""
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        parts |= {"outer": self.local.outer} if self.local else {}
        return parts | ({"average": self.average} if self.average else {})


@dataclass(frozen=True)
class Epoch:
    """How an epoch went, or the part of it that was left to do."""

    progress: Progress  # Where training stands now.
    interrupted: bool  # Whether the ranks agreed to stop before its end.
    figures: dict[str, Any] = field(default_factory=dict)  # Those of `Figures` that it decides.


@dataclass(frozen=True)
class Step:
    """How a step went."""

    loss: Tensor  # Sum of the losses of this rank's own samples, float32 scalar on its device.
    stopping: bool = False  # Whether any rank was asked to end.
    suspects: tuple[str, ...] = ()  # Who had a loss that was not finite, of which samples.


def train_epoch(run: Run, progress: Progress, stop: Stop) -> Epoch:
    """Train from a position to the end of its epoch, or to the step at which any rank must stop.

    Raises HaltError, on all ranks, where a loss is not finite and the job says that this ends it.
    """
    samples, seed = len(run.data.train), run.job.train.seed
    order = shards.permutation(samples, seed, progress.epoch)
    padding = run.data.padding
    crops = Crops.of_epoch(samples, seed, progress.epoch, padding) if padding else None
    run.model.train()
    step = Step(torch.zeros((), device=run.world.device))
    loss = step.loss
    began, todo, before = time.monotonic(), samples - progress.position, run.watch.read()
    run.watch.mark("compute")
    skipped: tuple[int, ...] = ()
    while progress.position < samples and not step.stopping:
        run.saver.check()
        left = order[progress.position :]
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.job.train, share_done(run, progress)) * group["scale"]
        step = train_step(run, progress, left, crops, stop)
        done = min(run.global_batch, len(left))
        progress = Progress(progress.epoch, progress.position + done, progress.step + 1)
        if step.suspects:
            skip_or_halt(run, progress, step)
            skipped, todo = (*skipped, progress.step), todo - done
        loss += step.loss
        seen = (todo - len(left) + done) * run.balance.shares[run.world.rank]
        run.live.tick(progress, samples, loss, seen)
    run.live.clear()
    if progress.position < samples:
        return Epoch(progress, interrupted=True, figures={"skipped": skipped})
    # Reading the loss waits until the device has done all steps, so it belongs to the time.
    total, seconds = run.world.sums([loss.item()])[0], time.monotonic() - began
    shares, slow = look(run.world, before, run.watch.read())
    run.watch.pause()
    figures: dict[str, Any] = {"loss": total / max(todo, 1), "images_per_second": todo / seconds}
    figures |= {"skipped": skipped, "shares": shares, "slow": slow}
    return Epoch(Progress(progress.epoch + 1, 0, progress.step), step.stopping, figures)


def skip_or_halt(run: Run, progress: Progress, step: Step) -> None:
    """Say which loss was not finite and, unless the job says to skip such steps, end."""
    where = f"in step {progress.step}, epoch {progress.epoch + 1}: {'; '.join(step.suspects)}"
    if run.job.train.on_nan == "stop":
        raise HaltError(f"the loss is not finite {where}")
    if run.world.rank == 0:
        complain(f"trainer: warning: skips an update, the loss is not finite {where}")


def train_step(run: Run, progress: Progress, left: Tensor, crops: Crops | None, stop: Stop) -> Step:
    """One optimizer step on the mean loss of the next samples of all ranks.

    `left`, int64 [n], are all samples of the epoch that are not done yet.
    """
    batch, rest = left[: run.global_batch], left[run.global_batch :]
    own, number = run.pieces(batch), progress.step + 1
    local = run.local if run.local and run.local.is_local(number) else None
    if local:
        local.begin(sum(map(len, own)))
    can_skip = run.job.train.on_nan == "skip"
    buffers = [buffer.clone() for buffer in run.model.buffers()] if can_skip else []
    loss, word = gradients(run, batch, own, crops, alone=local is not None)
    run.data.train.prefetch(torch.cat([*run.pieces(rest[: run.global_batch]), rest[:0]]))
    stopping, words = (False, ()) if local else agree(run, stop, word)
    if word or words:
        loss = torch.zeros_like(loss)
        for buffer, before in zip(run.model.buffers(), buffers, strict=False):
            buffer.copy_(before)
    else:
        update(run, progress)
    if local:
        local.word = local.word or word
        last = not len(rest)
        if local.is_due(number) or last:
            stopping, words = agree(run, stop, local.word)
            local.merge(run.world, last=last or stopping)
            run.watch.mark("communication")
    run.balance.note(sum(map(len, own)))
    return Step(loss, stopping, words)


def agree(run: Run, stop: Stop, word: str) -> tuple[bool, tuple[str, ...]]:
    """Tell each other who was asked to end and whose loss was not finite: all go on, or none."""
    asked, broken = run.world.sums([stop.requested, bool(word)])
    words = run.world.gather(word) if broken else []
    run.watch.mark("communication")
    return asked > 0, tuple(filter(None, words))


def gradients(
    run: Run, batch: Tensor, own: list[Tensor], crops: Crops | None, *, alone: bool
) -> tuple[Tensor, str]:
    """Compute the gradients of the mean loss of all ranks' `batch` or, `alone`, of `own` samples.

    Return the sum of the losses of this rank's samples and, if one is not finite, who had which.
    """
    # The replica averages gradients over ranks; this makes of it the mean over the samples, however
    # unevenly they are divided.
    weight = 1 / max(sum(map(len, own)), 1) if alone else run.world.size / len(batch)
    losses: list[Tensor] = []
    run.optimizer.zero_grad()
    # All ranks must take part in the exchange; one without samples adds nothing to it.
    pieces = own or [batch[:1]]
    for number, piece in enumerate(pieces, start=1):
        last = number == len(pieces)
        exchange = last and not alone
        with nullcontext() if exchange else run.replica.no_sync():
            loss = training_loss(run, piece, crops) * (weight if own else 0.0)
            losses.append(loss.detach())
            if last:
                finite = fetch(torch.isfinite(torch.stack(losses)))
            run.scaler.scale(loss).backward()
            run.watch.mark("communication" if exchange else "compute")
    flags = finite()
    bad = next((piece for piece, flag in zip(pieces, flags, strict=True) if not flag), None)
    word = "" if bad is None else f"{run.world.name}, samples {bad.tolist()}"
    return torch.stack(losses).sum() / weight, word


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
    """Sum of the losses of the training samples `indices`, int64 [n]; of text, mean of each."""
    inputs, labels = run.data.train.take(indices, run.world.device)
    if crops:
        inputs = crops.apply(inputs, indices)
    inputs = run.data.prepared(inputs)
    run.watch.mark("data")
    with autocast(run.precision, run.world.device):
        scores = run.replica(inputs)
    smoothing = run.job.train.label_smoothing
    loss = functional.cross_entropy(
        scores.float(), labels, reduction="sum", label_smoothing=smoothing
    )
    return loss * (len(labels) / labels.numel())


def update(run: Run, progress: Progress) -> None:
    """Change the weights by the gradients, and now and then draw them to their average."""
    run.scaler.step(run.optimizer)
    run.scaler.update()
    if run.average and progress.step % run.average.EVERY == 0:
        run.average.update(run.model, run.average.decay(share_done(run, progress)))
    run.watch.mark("compute")


def share_done(run: Run, progress: Progress) -> float:
    """Share of the job's samples that is done: needs no state and heeds any world size."""
    return (progress.epoch + progress.position / len(run.data.train)) / run.job.train.epochs


def learning_rate(train: Train, done: float) -> float:
    """The rate of the next step, after a share `done` of the training.

    cosine: annealing without restarts (Loshchilov and Hutter 2016, arXiv 1608.03983).
    """
    if train.schedule == "constant":
        return train.learning_rate
    if train.schedule == "triangle":
        start, peak, end = TRIANGLE
        rising = done < peak
        along = done / peak if rising else (1 - done) / (1 - peak)
        low = start if rising else end
        return train.learning_rate * (low + (1 - low) * along)
    return train.learning_rate * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def evaluate(run: Run) -> tuple[int, int]:
    """Classify each test sample on exactly one rank; return (correct, all), the same everywhere."""
    run.world.share_buffers(run.model)
    run.model.eval()
    test = run.data.test
    # The bare model: the replica would exchange, and ranks may have different numbers of parts.
    model = partial(flip_scores, run.model) if run.job.train.flip_at_test else run.model
    own = shards.evaluation_shard(len(test), run.world.rank, run.world.size)
    correct, seen = torch.zeros((), dtype=torch.int64, device=run.world.device), 0
    for part in torch.split(own, EVALUATION_BATCH):
        inputs, labels = test.take(part, run.world.device)
        with autocast(run.precision, run.world.device):
            found = model(run.data.prepared(inputs)).argmax(dim=1)
        correct += (found == labels).sum()
        seen += labels.numel()
    right, all_seen = run.world.sums([correct.item(), seen])
    return int(right), int(all_seen)
