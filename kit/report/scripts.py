"""Runs without a record, such as those of scripts: the facts that their launchers know. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kit.report.moments import Moment, moments
from kit.report.usage import Usage, usage_in
from kit.runtime.outcome import Outcome, outcome_of
from kit.runtime.status import JobStatus, LogLine


@dataclass(frozen=True, slots=True)
class Script:
    """A run of a job without a record; `number` is that of its deployment, 0 if it has none.

    `state` is "" if the events do not say how it has ended. `ranks` are those of each host.
    `outcome` is None if the target knows the run, `usage` if its job is not the queue's.
    """

    job: str
    number: int
    state: str
    world_size: int | None
    restarts: int
    failure: str
    ranks: tuple[tuple[str, tuple[int, ...]], ...]
    moments: tuple[Moment, ...]
    outcome: Outcome | None = None
    usage: Usage | None = None

    @property
    def words(self) -> str:
        """Its outcome or its state as text."""
        return (self.outcome.words if self.outcome else self.state) or "its end is not known"

    def json(self) -> dict[str, object]:
        """Return its values; times are in seconds since 1970."""
        return {
            "job": self.job,
            "number": self.number or None,
            "state": self.state or None,
            "world_size": self.world_size,
            "restarts": self.restarts,
            "failure": self.failure,
            "queue": asdict(self.usage) if self.usage else None,
            "outcome": self.outcome.json() if self.outcome else None,
            "events": [asdict(each) for each in self.moments],
        }


def from_status(status: JobStatus, number: int, lines: Iterable[LogLine]) -> Script:
    """Return the newest run of a job that the target knows."""
    ranks = tuple((host.host, host.ranks) for host in status.hosts if host.ranks)
    known = (status.world_size, status.restarts, status.failure, ranks)
    lines = list(lines)
    usage = usage_in(lines)
    return Script(status.job, number, status.state, *known, moments(lines), usage=usage)


def from_lines(job: str, number: int, lines: Iterable[LogLine]) -> Script:
    """Return a run of which the target knows nothing, from its kept lines."""
    lines = list(lines)
    end = outcome_of(lines)
    known = (end.world_size, end.restarts, end.failure, end.ranks)
    return Script(job, number, end.state or "", *known, moments(lines), end, usage_in(lines))
