"""One optimizer step: gradients, the exchange of verdicts between ranks, the update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.checkpoints.format import Progress
from trainer.core.compute import Lookahead, MovingAverage, autocast
from trainer.core.run import Run, Stop
from trainer.core.schedule import examined, share_done, warm_up
from trainer.custom.nested import floated
from trainer.data import shards
from trainer.data.augment import Augmentation
from trainer.parallel.pipeline import Pipelined
from trainer.parallel.sharded import all_finite

IGNORED = -100
"""The label of an excluded token: torch's cross entropy ignores it."""

GRADIENTS = "its gradients"
"""Replaces the samples in descriptions, if only the gradients are not finite."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step on this rank."""

    progress: Progress  # The position after it.
    loss: Tensor  # Sum of the losses of this rank's own samples, float32 scalar on its device.
    stopping: bool = False  # Whether any rank was asked to stop.
    bad_losses: tuple[str, ...] = ()  # Losses that were not finite, with ranks and samples.
    samples: int = 0  # Of this rank.
    moved: bool = True  # Whether this rank's weights have changed.


class Verdict(NamedTuple):
    """The values that all ranks share after a step."""

    stopping: bool = False
    bad_losses: tuple[str, ...] = ()


def train_step(
    run: Run, progress: Progress, left: Tensor, augmentation: Augmentation | None, stop: Stop
) -> StepResult:
    """Take one optimizer step on the mean loss of the next samples of all ranks.

    `left`, int64 [n], are all remaining samples of the epoch.
    """
    batch = shards.next_batch(left, run.global_batch)
    own, number = run.pieces(batch), progress.step + 1
    local = run.ranks.begin_local(number, sum(map(len, own)))
    restore = remember(run)
    try:
        loss, bad_loss = gradients(run, batch, own, augmentation, local=local)
        if not run.ranks.optimizers_differ:

            def again() -> tuple[Tensor, str]:
                restore()
                return gradients(run, batch, own, augmentation, local=False)

            loss, bad_loss = examined(run, number, (loss, bad_loss), again)
        verdict = Verdict() if local else exchange_verdicts(run, stop, bad_loss)
    except RuntimeError:  # A lost peer: the step is repeated.
        restore()
        raise
    bad = bool(bad_loss or verdict.bad_losses)
    if bad:
        loss = torch.zeros_like(loss)
    moved = not bad and update(run, progress)
    if not moved:
        restore()
        if local:
            run.ranks.skip_local(sum(map(len, own)))
    loss, samples = (loss, sum(map(len, own))) if run.ranks.counts else (torch.zeros_like(loss), 0)
    after = Progress(progress.epoch, progress.position + len(batch), number)
    # Set this before the next collective, which may fail.
    run.reached.progress, run.reached.time = after, time.monotonic()
    if local:
        verdict = end_local(run, stop, number, bad_loss, last=len(batch) == len(left))
    run.balance.note(samples)
    return StepResult(after, loss, *verdict, samples, moved)


def remember(run: Run) -> Callable[[], None]:
    """Return a function that undoes the effects of gradients on buffers and the exchange's state.

    BatchNorm's buffers are copied if a step may be skipped or repeated.
    """
    skips = run.job.train.on_nan == "skip" or run.scaler.is_enabled()
    may_undo = skips or run.job.faults.repeat_above or run.world.generation
    buffers = [buffer.clone() for buffer in run.model.buffers()] if may_undo else []
    exchange = run.ranks.prepare(run.scaler.get_scale)

    def restore() -> None:
        for buffer, before in zip(run.model.buffers(), buffers, strict=False):
            buffer.copy_(before)
        exchange()

    return restore


def exchange_verdicts(run: Run, stop: Stop, bad_loss: str) -> Verdict:
    """Share stop requests and non-finite losses of all ranks: all ranks decide the same."""
    asked, broken = run.world.sums([stop.requested, bool(bad_loss)])
    found = tuple(filter(None, run.world.gather(bad_loss) if broken else []))
    run.watch.mark("communication")
    # By the all-reduce, all ranks have the gradients of a non-finite loss: name only the loss.
    losses = tuple(each for each in found if not each.endswith(GRADIENTS))
    return Verdict(asked > 0, losses or found)


def end_local(run: Run, stop: Stop, number: int, bad_loss: str, *, last: bool) -> Verdict:
    """End a local step and, if a round ends with it, merge the ranks."""
    bad_loss_of_round = run.ranks.end_local(number, bad_loss, last=last)
    if bad_loss_of_round is None:
        return Verdict()
    verdict = exchange_verdicts(run, stop, bad_loss_of_round)
    run.ranks.merge(last=last)
    return verdict


def gradients(
    run: Run, batch: Tensor, own: list[Tensor], augmentation: Augmentation | None, *, local: bool
) -> tuple[Tensor, str]:
    """Compute the gradients of the mean loss of all ranks' `batch` or, if local, of `own` samples.

    Return the sum of the losses of this rank's samples and, if one is not finite, its description.
    """
    # The gradients are averaged over ranks; this weight makes that the mean over samples, for any
    # division of the batch.
    weight = 1 / max(sum(map(len, own)), 1) if local else run.ranks.data_size / len(batch)
    if isinstance(run.ranks, Pipelined):
        return pipelined_gradients(run, run.ranks, own, weight)
    losses: list[Tensor] = []
    run.optimizer.zero_grad()
    # All ranks must take part in the all-reduce; one without samples contributes zeros. Ranks of a
    # divided model, or with synchronised norms, compute together, so each must have equally many
    # pieces. The extra ones do not change the statistics of BatchNorm.
    together = run.job.parallel.used or run.job.train.sync_batch_norm
    lacking = run.micro_steps - len(own) if together else int(not own)
    pieces, grouped = own + [batch[:1]] * lacking, run.data.train.grouped(batch)
    for number, piece in enumerate(pieces, start=1):
        last = number == len(pieces)
        exchange = last and not local
        with nullcontext() if exchange else run.ranks.unsynchronised():
            counts = number <= len(own)
            with nullcontext() if counts else unmoving_norms(run.model):
                loss = training_loss(run, grouped, piece, augmentation) * (
                    weight if counts else 0.0
                )
            losses.append(loss.detach())
            if last:
                finite = fetch(torch.isfinite(torch.stack(losses)))
            run.scaler.scale(loss).backward()
            run.watch.mark("communication" if exchange else "compute")
    bad = bad_loss_of(run, pieces, finite()) or bad_gradient(run)
    return torch.stack(losses).sum() / weight, bad


@contextmanager
def unmoving_norms(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers use their running statistics instead of those of the samples.

    SyncBatchNorm layers are excluded: they get samples from other ranks.
    """
    layers = [
        each
        for each in model.modules()
        if isinstance(each, _BatchNorm) and not isinstance(each, nn.SyncBatchNorm) and each.training
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def bad_loss_of(run: Run, pieces: Sequence[Tensor], flags: Iterable[Tensor]) -> str:
    """Describe the first of this rank's losses that is not finite, if one is not."""
    bad = next((piece for piece, flag in zip(pieces, flags, strict=True) if not flag), None)
    return "" if bad is None else f"{run.world.name}, samples {bad.tolist()}"


def bad_gradient(run: Run) -> str:
    """Describe gradients that are not finite, although the losses are.

    Only for jobs that skip such steps, as it waits for the GPU. With fp16 the scaler detects them.
    """
    if run.job.train.on_nan != "skip" or run.scaler.is_enabled():
        return ""
    found = [each.grad for each in run.model.parameters() if each.grad is not None]
    return "" if all_finite(found) else f"{run.world.name}, {GRADIENTS}"


def pipelined_gradients(
    run: Run, ranks: Pipelined, own: list[Tensor], weight: float
) -> tuple[Tensor, str]:
    """Compute gradients as `gradients` does, with micro-batches that pass through stages.

    All micro-batches of a training have the same size. In the last step of an epoch, the missing
    samples are copies of others, without labels.
    """
    steps = run.micro_steps
    rows = math.ceil(math.ceil(run.global_batch / ranks.data_size) / steps)
    pieces = own + [torch.empty(0, dtype=torch.int64)] * (steps - len(own))
    padded = [torch.cat((each, each.new_zeros(rows - len(each)))) for each in pieces]
    inputs, labels = run.data.train.take(torch.cat(padded), run.world.device)
    for number, piece in enumerate(pieces):
        labels[number * rows + len(piece) : (number + 1) * rows] = IGNORED
    run.optimizer.zero_grad()
    run.watch.mark("data")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return run.task.loss(floated(outputs), targets) * weight

    losses = ranks.step(inputs, labels, steps, loss)
    run.watch.mark("compute")
    bad = bad_loss_of(run, pieces, torch.isfinite(losses).cpu())
    return losses.sum() / weight, bad or bad_gradient(run)


def fetch(flags: Tensor) -> Callable[[], Tensor]:
    """Begin a copy to the CPU; the result waits for the copy, not for work queued behind it."""
    if not flags.is_cuda:
        return lambda: flags
    copy = torch.empty_like(flags, device="cpu", pin_memory=True).copy_(flags, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copy

    return wait


def training_loss(
    run: Run, batch: Tensor, piece: Tensor, augmentation: Augmentation | None
) -> Tensor:
    """Sum of the losses of the training samples `piece`, int64 [n]; a text's loss is a mean.

    `batch` is the global batch that has them.
    """
    indices = augmentation.reads(batch, piece) if augmentation else piece
    inputs, labels = run.data.train.take(indices, run.world.device)
    if augmentation:
        inputs = augmentation.apply(indices, inputs)
    inputs = run.data.prepared(inputs)
    if augmentation:
        inputs, labels = augmentation.apply_prepared(batch, piece, inputs, labels)
    run.watch.mark("data")
    with run.task.guard():
        with autocast(run.precision, run.world.device):
            outputs = run.ranks.forward(inputs)
        return run.task.loss(floated(outputs), labels)


def update(run: Run, progress: Progress) -> bool:
    """Update the weights by the gradients, and their average; return whether they were finite.

    Gradients of fp16 may overflow: the scaler skips the update, and lowers the scale.
    """
    norm = run.job.train.clip_norm
    if norm:
        run.scaler.unscale_(run.optimizer)
        groups = run.optimizer.param_groups
        run.ranks.clip([each for group in groups for each in group["params"]], norm)
    scale, new = run.scaler.get_scale(), not run.optimizer.state
    run.scaler.step(run.optimizer)
    run.scaler.update()
    finite = bool(run.scaler.get_scale() >= scale > 0)
    if finite:
        follow(run, progress)
    elif new:
        # torch's fused SGD has allocated its momentum, but not initialised it.
        run.optimizer.state.clear()
    run.watch.mark("compute")
    return finite


def follow(run: Run, progress: Progress) -> None:
    """Update the average of the weights after a step; Lookahead resets the weights at intervals."""
    average, train = run.average, run.job.train
    if isinstance(average, Lookahead) and progress.step % average.EVERY == 0:
        average.update(run.model, average.decay(share_done(run, progress)))
    if isinstance(average, MovingAverage):
        # In the warm-up the weights change so fast that the average only copies them.
        follows = progress.step > 0 and warm_up(run, progress) >= 1
        decay = average.decay(train.ema_decay or 0.0, run.global_batch, train.epochs)
        average.update(run.model, decay if follows else 0.0)
