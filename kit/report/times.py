"""The division of a run's time, and the figures by which runs are compared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from kit.report.record import Attempt, Rank, Run, Window

KINDS = {
    "compute": "forward, backward and optimizer",
    "data": "reading and preparing samples",
    "exchange": "waiting for other ranks and for the network",
    "evaluation": "the test samples",
    "checkpoint": "pauses of the training while a checkpoint is copied",
    "start": "from the start of the first process to the first step, also after a stop",
    "restart": "from the last step before an interruption to the first one after it",
    "lost": "steps that were done again after an interruption",
    "other": "the rest",
}
"""The kinds of time and their meanings. Times of ranks are means."""
SLOW = 1.15
"""A rank is slow if its own work in a step takes this many times the median of the others. The
trainer's own limit for an epoch is 1.3; over a whole run chance is smaller."""


def division(run: Run) -> dict[str, float]:
    """Divide the run's seconds by kind; the sum is exact."""
    spent = dict.fromkeys(KINDS, 0.0)
    for before, attempt in zip((None, *run.attempts), run.attempts, strict=False):
        if before is None:
            spent["start"] += attempt.time - attempt.began
        elif before.ended_well:
            # A process of this attempt may have begun while the one before it still trained.
            spent["start"] += max(0.0, attempt.time - max(attempt.began, before.last))
        else:
            spent["restart"] += max(0.0, attempt.time - before.last)
        kept = [_kept(attempt, rank) for rank in attempt.ranks]
        number = max(len(kept), 1)
        for windows in kept:
            spent["data"] += sum(window.data for window in windows) / number
            spent["compute"] += sum(window.compute for window in windows) / number
            spent["exchange"] += sum(window.exchange for window in windows) / number
        spent["lost"] += _lost(attempt)
        for epoch in attempt.epochs:
            spent["evaluation"] += epoch.evaluation if attempt.is_kept(epoch.step) else 0.0
        for event in attempt.events:
            if event.kind == "saved":
                spent["checkpoint"] += event.seconds
            if event.kind == "end":
                spent["evaluation"] += event.seconds
    spent["other"] = max(0.0, run.seconds - sum(spent.values()))
    return spent


def _kept(attempt: Attempt, rank: Rank) -> list[Window]:
    return [window for window in rank.windows if attempt.is_kept(window.step)]


def _lost(attempt: Attempt) -> float:
    if not attempt.ranks:
        return 0.0
    windows = attempt.ranks[0].windows
    return sum(window.seconds for window in windows if not attempt.is_kept(window.step))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside others. Times are in seconds; `speedup` and `efficiency` are relative.

    They compare the training without its start with the first run of the smallest world, and are
    None if the runs did not train the same number of samples.
    """

    run: Run
    world_size: int
    hosts: int
    steps_per_epoch: int
    epochs: int
    seconds: float
    training: float
    images_per_second: float | None
    tokens_per_second: float | None
    speedup: float | None
    efficiency: float | None
    accuracy: float | None
    best_accuracy: float | None
    validation_loss: float | None


def compare(runs: Sequence[Run]) -> tuple[Comparison, ...]:
    """Return the runs side by side."""
    if not runs:
        return ()
    base = min(runs, key=lambda run: run.attempts[-1].world_size)
    return tuple(_comparison(run, base) for run in runs)


def _comparison(run: Run, base: Run) -> Comparison:
    last, epochs = run.attempts[-1], run.epochs
    world, own = last.world_size, training_seconds(run)
    equal = _work(run) == _work(base) and own > 0 and len(epochs) > 0
    speedup = training_seconds(base) / own if equal else None
    batch = int(run.facts.get("global_batch", 0))
    known = [epoch.accuracy for epoch in epochs if epoch.accuracy is not None]
    return Comparison(
        run=run,
        world_size=world,
        hosts=len(last.hosts),
        steps_per_epoch=-(-run.samples // batch) if batch else 0,
        epochs=len(epochs),
        seconds=run.seconds,
        training=own,
        images_per_second=_rate(run),
        tokens_per_second=_tokens_rate(run),
        speedup=speedup,
        efficiency=speedup and speedup * base.attempts[-1].world_size / world,
        accuracy=known[-1] if known else None,
        best_accuracy=max(known, default=None),
        validation_loss=epochs[-1].validation_loss if epochs else None,
    )


def training_seconds(run: Run) -> float:
    """Return the seconds from the first step to the end, with evaluations and checkpoints."""
    return run.seconds - (run.attempts[0].time - run.began)


def _work(run: Run) -> tuple[int, int]:
    return run.samples, len(run.epochs)


def _rate(run: Run) -> float | None:
    """Return the training samples per second over all ranks, while steps were taken."""
    windows = [
        (attempt, window)
        for attempt in run.attempts
        for rank in attempt.ranks[:1]
        for window in rank.windows
    ]
    seconds = sum(window.seconds for _, window in windows)
    samples = sum(
        window.samples
        for attempt in run.attempts
        for rank in attempt.ranks
        for window in rank.windows
    )
    return samples / seconds if seconds else None


def _tokens_rate(run: Run) -> float | None:
    """Return the tokens per second of a text, whose samples have equal numbers of tokens."""
    rate = _rate(run)
    for epoch in reversed(run.epochs):
        if rate and epoch.tokens_per_second and epoch.images_per_second:
            return rate * epoch.tokens_per_second / epoch.images_per_second
    return None


def speed_unit(comparisons: Sequence[Comparison]) -> str:
    """Return the unit in which the speed of runs can be compared."""
    texts = [each.tokens_per_second is not None for each in comparisons]
    if any(texts):
        return "tokens/s" if all(texts) else "samples/s"
    return "images/s"


def speed(comparison: Comparison, unit: str) -> float | None:
    """Return the speed of a run in a unit of `speed_unit`."""
    return comparison.tokens_per_second if unit == "tokens/s" else comparison.images_per_second


@dataclass(frozen=True, slots=True)
class Pace:
    """A rank's steps in the newest attempt, in seconds a step; `work` is data and compute.

    `factor` is its work relative to the median of the other ranks.
    """

    rank: Rank
    median: float
    slowest: float
    work: float
    exchange: float
    factor: float

    @property
    def slow(self) -> bool:
        """Whether the other ranks wait for it."""
        return self.factor > SLOW


def paces(run: Run) -> tuple[Pace, ...]:
    """Return the pace of each rank of the newest attempt that took steps."""
    attempts = [each for each in run.attempts if any(rank.windows for rank in each.ranks)]
    ranks = [rank for rank in attempts[-1].ranks if rank.windows] if attempts else []
    work = [_per_step(rank, "data") + _per_step(rank, "compute") for rank in ranks]
    return tuple(
        Pace(
            rank=rank,
            median=_median(window.median for window in rank.windows),
            slowest=max(window.most for window in rank.windows),
            work=work[number],
            exchange=_per_step(rank, "exchange"),
            factor=work[number] / (_median([*work[:number], *work[number + 1 :]] or work) or 1.0),
        )
        for number, rank in enumerate(ranks)
    )


def _per_step(rank: Rank, kind: str) -> float:
    steps = sum(window.steps for window in rank.windows)
    return float(sum(getattr(window, kind) for window in rank.windows)) / max(steps, 1)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else fmean(ordered[middle - 1 : middle + 1])
