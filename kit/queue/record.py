"""The stored state of each job of the queue, and the use of each person. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from kit.queue.pool import Had, QueuedJob, Wish

HOUR = 3600.0
COMPLETED, FAILED = "completed", "failed"
"""The states of a job that has ended by itself, in the words of `kit status`."""


@dataclass(frozen=True, slots=True)
class Record:
    """The stored state of a job of the queue, in addition to the labels of its services.

    Times are in seconds since the epoch: `arrived` at the queue, `waits` since, `began` to run,
    `ended` with the `state` of a job. `by` has submitted it. `reason` is why it waits. It waited
    for `waited` seconds before it began. `home` are the hosts with its newest checkpoint. `gone`:
    it is hidden from users, and kept in case it is submitted again.
    """

    job: str
    owner: str
    priority: int
    arrived: float
    by: str = ""
    waits: float | None = None
    began: float | None = None
    level: float = 0.0
    early: bool = False
    reason: str = ""
    ended: float | None = None
    state: str = ""
    waited: float = 0.0
    home: tuple[str, ...] = ()
    gone: bool = False

    def to_job(self, wish: Wish, has: Mapping[str, Had]) -> QueuedJob:
        """Return the job with its `wish`, and the GPUs that it `has` now.

        A killed controller may have started it without a record: then it began when it received
        its first host.
        """
        began = self.began
        if began is None and (kept := [had.since for had in has.values() if not had.leaving]):
            began = min(kept)
        return QueuedJob(
            name=self.job,
            owner=self.owner,
            priority=self.priority,
            arrived=self.arrived,
            wish=wish,
            has=has,
            waits=None if began is not None else self.waits or self.arrived,
            began=began,
            level=self.level,
            early=self.early,
            home=frozenset(self.home),
        )

    def noted(self, job: QueuedJob, reason: str) -> Record:
        """Return the record with the state of its job after a turn."""
        return replace(
            self,
            waits=job.waits,
            began=job.began,
            level=job.level,
            early=job.early,
            reason=reason,
            waited=self.waited if job.began is None else self.waited_until(job.began),
            home=tuple(sorted(job.home)),
        )

    def waited_until(self, now: float) -> float:
        """Return its total waiting time until `now`, in seconds."""
        waits = self.began is None and self.ended is None
        return self.waited + (max(0.0, now - (self.waits or self.arrived)) if waits else 0.0)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "", ())}


def record_of(document: Mapping[str, Any]) -> Record:
    """Return the record of a document; keys of newer versions of kit are left out.

    Raises:
        TypeError: It is not a record.
    """
    known = {key: value for key, value in document.items() if key in Record.__dataclass_fields__}
    return Record(**{**known, "home": tuple(known.get("home", ()))})


def going(records: Mapping[str, Record]) -> dict[str, Record]:
    """Return the jobs that have not ended, by name."""
    return {name: record for name, record in records.items() if record.ended is None}


@dataclass(frozen=True, slots=True)
class Spent:
    """GPU-hours of each person until `at`, with the half-life applied.

    `months` are the whole GPU-hours, by the month (`2026-11`, in UTC), the person and the job.
    """

    at: float
    hours: Mapping[str, float] = field(default_factory=dict)
    months: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def until(self, now: float, half_life: float) -> dict[str, float]:
        """Return the hours with the half-life applied until `now`. A clock set back is ignored."""
        left: float = 0.5 ** (max(0.0, now - self.at) / half_life)
        return {person: hours * left for person, hours in self.hours.items()}

    def more(self, now: float, half_life: float, gpus: Mapping[tuple[str, str], int]) -> Spent:
        """Return the use at a later time; the jobs of people have had these `gpus` since `at`."""
        hours, passed = self.until(now, half_life), max(0.0, now - self.at) / HOUR
        month = f"{datetime.fromtimestamp(now, UTC):%Y-%m}"
        people = {name: dict(jobs) for name, jobs in self.months.get(month, {}).items()}
        for (person, job), number in gpus.items():
            if number:
                hours[person] = hours.get(person, 0.0) + number * passed
                jobs = people.setdefault(person, {})
                jobs[job] = jobs.get(job, 0.0) + number * passed
        return Spent(max(now, self.at), hours, {**self.months, month: people})
