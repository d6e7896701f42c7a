"""Engines carry a plan out; they decide nothing that the plan did not.

One interface; this machine is its first implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from kit.plan.types import JobPlan


class State(StrEnum):
    """How a job, or its part on one host, is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({State.COMPLETED, State.STOPPED, State.FAILED})


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest metrics of rank 0; None where a job's own script reports none."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    images_per_second: float | None


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host's part: its processes and how they are doing."""

    host: str
    processes: int
    state: State
    exit_status: int | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. `started` and `ended` are seconds since the epoch."""

    job: str
    state: State
    message: str
    started: float
    ended: float | None
    hosts: tuple[HostStatus, ...]
    progress: Progress | None
    checkpoint: Path | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a host's output."""

    job: str
    host: str
    text: str


class Engine(Protocol):
    """What every engine can do."""

    def deploy(self, jobs: Sequence[JobPlan], *, fresh: bool) -> None:
        """Start the jobs and return; `fresh` jobs forget their checkpoints first.

        Raises:
            KitError: One of them runs already, or cannot be started; none is then.
        """

    def status(self) -> tuple[JobStatus, ...]:
        """Return all jobs that the engine knows of, ended ones too."""

    def logs(self, jobs: Sequence[str], *, follow: bool) -> Iterator[LogLine]:
        """Yield what the jobs' hosts have printed; with `follow` until all jobs have ended.

        Raises:
            KitError: One of the jobs is not known.
        """

    def stop(self, job: str) -> JobStatus:
        """End a job gracefully, with a last checkpoint, and return how it ended.

        Raises:
            KitError: It is not running.
        """
