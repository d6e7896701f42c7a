"""One epoch or its rest, and a step before the first one, whose gradients are discarded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.core.models import train_mode
from trainer.core.run import Run, Stop
from trainer.core.schedule import set_rate
from trainer.core.state import random_states, set_random_states
from trainer.core.step import StepResult, gradients, train_step
from trainer.core.watch import compare_ranks
from trainer.data import shards
from trainer.data.augment import Augmentation
from trainer.output import emit, say_error
from trainer.parallel.halt import HaltError
from trainer.record.telemetry import StepFigures, Trained

SKIP_LIMIT, FEW = 0.1, 3
"""Share of an epoch's steps that may be skipped, and the number that may always be skipped."""
UNMOVED = 100
"""Successive steps without a change of the weights after which kit warns, and each time again."""


@dataclass(frozen=True)
class EpochResult:
    """The result of an epoch, or of the rest of an epoch."""

    progress: Progress  # The present position.
    interrupted: bool  # Whether the ranks agreed to stop before its end.
    trained: Trained


class Tally:
    """The sums over the steps of an epoch; `samples` counts the losses in the sum."""

    def __init__(self, run: Run, samples: int) -> None:
        self.loss = torch.zeros((), device=run.world.device)  # Of this rank's own samples.
        self.samples, self.skipped, self._began = samples, tuple[int, ...](), time.monotonic()
        self._before = run.watch.read()
        run.watch.mark("compute")

    def trained(self, run: Run) -> Trained:
        """Sum the ranks' counts; all ranks must call it."""
        # Reading the loss waits until the device has completed all steps: the time includes it.
        total, seconds = run.world.sums([self.loss.item()])[0], time.monotonic() - self._began
        shares, slow = compare_ranks(run.world, self._before, run.watch.read())
        run.watch.pause()
        loss = total / self.samples if self.samples else None
        rate = self.samples / seconds or None
        more = run.announcer.speed.figures(rate)
        return Trained(loss, rate, self.skipped, shares, slow, **more)


def train_epoch(run: Run, progress: Progress, stop: Stop) -> EpochResult:
    """Train from a position to the end of its epoch, or to the step at which any rank must stop.

    Raises HaltError on all ranks if a loss is not finite and the job does not skip such steps.
    """
    samples, train = len(run.data.train), run.job.train
    order = run.data.train.order(train.seed, progress.epoch)
    augmentation = Augmentation.of_epoch(train, run.data, progress.epoch)
    train_mode(run.model, train.freeze)
    tally, stopping = Tally(run, samples - progress.position), False
    figures = StepFigures(progress, 0, moved=False, loss=tally.loss, seen=0)
    shares = list[float]()
    run.meter.begin_epoch()
    run.recorder.start_epoch()
    while progress.position < samples and not stopping:
        run.saver.check()
        left = order[progress.position :]
        if shares is not run.balance.shares:
            shares = run.balance.shares
            run.data.train.expect(own_reads(run, left, augmentation), progress.epoch)
        set_rate(run, progress)
        step = train_step(run, progress, left, augmentation, stop)
        done, stopping = step.progress.position - progress.position, step.stopping
        progress = step.progress
        if step.bad_losses:
            skip_or_halt(run, progress, step)
            tally.skipped, tally.samples = (*tally.skipped, progress.step), tally.samples - done
            require_few_skipped(run, tally)
        compare(run, progress)
        tally.loss += step.loss
        seen = (tally.samples - len(left) + done) * run.balance.shares[run.ranks.data_rank]
        figures = StepFigures(progress, step.samples, step.moved, tally.loss, seen)
        unmoved = run.meter.unmoved
        for sink in (run.recorder, run.live, run.meter):
            sink.step(figures)
        tell_unmoved(run, progress, unmoved)
    run.recorder.end_window(figures)
    run.live.clear()
    trained = Trained(skipped=tally.skipped)
    if progress.position == samples:
        progress, trained = Progress(progress.epoch + 1, 0, progress.step), tally.trained(run)
    run.meter.end_steps(progress, len(tally.skipped), figures.mean)
    return EpochResult(progress, stopping, trained)


def require_few_skipped(run: Run, tally: Tally) -> None:
    """Raise HaltError on all ranks if more steps were skipped than the job allows."""
    steps = -(-len(run.data.train) // run.global_batch)
    most = (run.job.train.skip_limit or SKIP_LIMIT) * steps
    if len(tally.skipped) > max(most, FEW):
        what = f"{len(tally.skipped)} of an epoch's {steps} steps had a loss that is not finite"
        fix = "lower train.learning_rate, or look at the samples that the log names"
        raise HaltError("loss", f"{what}, more than train.skip_limit allows; {fix}")


def compare(run: Run, progress: Progress) -> None:
    """At the job's interval, raise HaltError on all ranks if their parameters differ."""
    every = run.job.faults.compare_every
    if every and progress.step % every == 0 and not run.ranks.optimizers_differ:
        run.ranks.require_equal(buffers=False)


def own_reads(run: Run, left: Tensor, augmentation: Augmentation) -> Iterator[Tensor]:
    """Yield the samples that this rank reads for its next micro-batches, int64 [n] each."""
    for batch in shards.batches(left, run.global_batch):
        grouped = run.data.train.grouped(batch)
        for piece in run.pieces(batch):
            yield augmentation.reads(grouped, piece)


def tell_unmoved(run: Run, progress: Progress, before: int) -> None:
    """Report that steps do not change the weights any more, or that they do again.

    `before` is the number of such steps before the last one. Local rank 0 of each host reports it.
    """
    steps = run.meter.unmoved
    if run.world.local_rank != 0 or (steps % UNMOVED if steps else before < UNMOVED):
        return
    scale = run.scaler.get_scale() if run.scaler.is_enabled() else 0.0
    emit(events.Unmoved(steps=steps, scale=scale))
    if steps:
        why = f", the scale of the loss is {scale:.3g}" if scale else ""
        say_error(
            f"trainer: warning: {run.world.name}: the weights have not changed for {steps} steps, "
            f"up to step {progress.step}: losses or gradients were not finite{why}"
        )


def skip_or_halt(run: Run, progress: Progress, step: StepResult) -> None:
    """Report a non-finite loss; halt unless the job skips such steps."""
    where = f"in step {progress.step}, epoch {progress.epoch + 1}: {'; '.join(step.bad_losses)}"
    if run.job.train.on_nan == "stop":
        raise HaltError("loss", f"the loss is not finite {where}")
    if run.world.rank == 0:
        say_error(f"trainer: warning: skips an update, the loss is not finite {where}")


def rehearse(run: Run) -> None:
    """Run forward and backward once, so that all steps of the training have the same buckets.

    DDP orders its buckets in its first backward pass. The rounding of a sum of three or more values
    depends on its place in a bucket, and PowerSGD has a state per bucket: without a rehearsal the
    first step after an interruption would differ from that of an uninterrupted training.
    torch.compile also compiles here, before the time of the first epoch is measured.
    """
    own, states = run.ranks.own(run.modules), random_states(run.world.device)
    train_mode(run.model, run.job.train.freeze)
    batch = torch.arange(min(run.global_batch, len(run.data.train)))
    pieces = run.pieces(batch)
    gradients(run, batch, pieces[:1], None, local=False)
    run.optimizer.zero_grad()
    run.ranks.load_own(own, run.modules)
    set_random_states(states, run.world.device)
    run.watch.pause()
