"""A run as values; record_lines.py reads it from the lines of its record. Pure.

trainer/record/files.py describes the files. A run consists of attempts: each begins when the ranks
begin to train or resume, and ends with the next one, or with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trainer.contract.allocation import Allocation

MOST_SILENT = 3
"""The most ranks that a reason lists."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps of a rank since its last window; the newest is `step`.

    `epoch` is the position in epochs. Times are in seconds: `time` since 1970, of all `steps`
    together `seconds`, `data`, `compute` and `exchange`, of one step `median`, `least` and `most`.
    `loss` is the mean of the rank's `samples`, in nats.
    """

    time: float
    step: int
    epoch: float
    steps: int
    seconds: float
    median: float
    least: float
    most: float
    samples: float
    loss: float | None
    data: float
    compute: float
    exchange: float


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of an attempt. `setup` are the seconds from its process's start to the training.

    `allocation` is what the queue has given to its host, if the job is the queue's.
    """

    rank: int
    host: str
    device: str
    gpu: str
    setup: float
    windows: tuple[Window, ...]
    allocation: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """A complete epoch. `evaluation` is in seconds, losses in nats, accuracy is a share.

    `tokens_per_second` is of a text. `mfu` is the share of the GPUs' peak that the model uses.
    """

    time: float
    epoch: int
    step: int
    loss: float | None
    accuracy: float | None
    validation_loss: float | None
    images_per_second: float | None
    evaluation: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    mfu: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something at a time, in seconds since 1970: saved, sample, stop, end.

    `seconds` is its duration, for a checkpoint the pause of the training. `text` is a sample's.
    """

    kind: str
    time: float
    step: int
    epoch: int
    seconds: float = 0.0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a rank by an exception; `peer`: only because it lost another rank."""

    time: float
    rank: int
    host: str
    reason: str
    peer: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """The training from `time`, in seconds since 1970, at `step` until it ends or is interrupted.

    `kept` is the step from which the next attempt resumed: later steps of this one are lost. None
    if nothing was lost.
    """

    time: float
    step: int
    world_size: int
    ranks: tuple[Rank, ...]
    epochs: tuple[Epoch, ...]
    events: tuple[Event, ...]
    kept: int | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def reason(self) -> str:
        """Why it was interrupted, as far as its ranks could record it; "" if none could.

        A process that is killed, or whose host is gone, records nothing; its peers do.
        """
        own = [each for each in self.failures if not each.peer]
        if own:
            first = min(own, key=lambda each: each.time)
            return f"rank {first.rank} on {first.host}: {first.reason}"
        if not self.failures:
            return ""
        known = {each.rank for each in self.failures}
        silent = [each for each in self.ranks if each.rank not in known]
        if not silent:
            return f"the ranks lost each other: {self.failures[0].reason}"
        names = ", ".join(f"rank {each.rank} on {each.host}" for each in silent[:MOST_SILENT])
        more = f" and {len(silent) - MOST_SILENT} more" if len(silent) > MOST_SILENT else ""
        return f"{names}{more} ended without a message: killed, or the host or its network is gone"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its ranks."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def last(self) -> float:
        """The time of its last line."""
        times = [window.time for rank in self.ranks for window in rank.windows[-1:]]
        times += [epoch.time for epoch in self.epochs] + [event.time for event in self.events]
        return max(times, default=self.time)

    @property
    def began(self) -> float:
        """The time at which its processes began."""
        return self.time - max((rank.setup for rank in self.ranks), default=0.0)

    @property
    def ended_well(self) -> bool:
        """Whether it reached its end, or was stopped by a person."""
        return any(event.kind in {"stop", "end"} for event in self.events)

    def is_kept(self, step: int) -> bool:
        """Whether the work up to a step was not repeated by the next attempt."""
        return self.kept is None or step <= self.kept


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. `facts` are those that the trainer recorded at the newest beginning.

    `name` is a short one in a report. `by_class` are rank 0's figures of classes, as it wrote them.
    """

    id: str
    job: str
    attempts: tuple[Attempt, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None
    name: str = ""
    by_class: Mapping[str, Any] | None = None
    test: Mapping[str, float] = field(default_factory=dict)
    """Figures of the test, if a validation has chosen the checkpoint for it."""

    @property
    def label(self) -> str:
        """Its short name in a report, which is unique there."""
        return self.name or self.title

    @property
    def title(self) -> str:
        """Its job, and its name among the job's runs."""
        return f"{self.job}@{self.id}"

    @property
    def began(self) -> float:
        """The time at which its first process began."""
        return self.attempts[0].began

    @property
    def ended(self) -> float:
        """The time of its last line."""
        return max(attempt.last for attempt in self.attempts)

    @property
    def idle(self) -> float:
        """The seconds between an attempt that was stopped, or complete, and the next start."""
        pairs = pairwise(self.attempts)
        return sum(max(0.0, after.began - each.last) for each, after in pairs if each.ended_well)

    @property
    def seconds(self) -> float:
        """The seconds from its first process to its last line, without `idle`."""
        return self.ended - self.began - self.idle

    @property
    def state(self) -> str:
        """`complete`, `stopped` or `not complete`."""
        kinds = {event.kind for event in self.attempts[-1].events}
        return "complete" if "end" in kinds else "stopped" if "stop" in kinds else "not complete"

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of all attempts, without repeated ones."""
        return tuple(
            epoch
            for attempt in self.attempts
            for epoch in attempt.epochs
            if attempt.is_kept(epoch.step)
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all attempts."""
        return tuple(event for attempt in self.attempts for event in attempt.events)

    @property
    def samples(self) -> int:
        """Training samples of an epoch."""
        return int(self.facts.get("train", 0))


def named(runs: Sequence[Run]) -> list[Run]:
    """Give runs short names: of the job, or of job and time if a job has several runs."""
    jobs = [run.job for run in runs]
    return [
        replace(run, name=run.job if jobs.count(run.job) == 1 else f"{run.job}@{run.id[:15]}")
        for run in runs
    ]
