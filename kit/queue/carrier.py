"""The interface between the queue (its controller and commands) and the engine that runs jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kit.errors import KitError
from kit.queue.document import Rules
from kit.queue.moves import Begin, Release
from kit.queue.pool import Pool
from kit.queue.record import Record, Spent
from kit.queue.service import Service


class RefusedError(KitError):
    """The engine of a host refuses to run a job there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The pool as the engine shows it, and the changes that the queue did not make.

    `lost` are the jobs that hold hosts that do not answer. `ended` is the state of each job that
    has ended, `ending` are jobs that have completed on some of their hosts. `coordinators` are the
    jobs whose coordinator is on. `reclaimed` maps each reclaimed host to the person who wants it.
    `interrupted` are jobs on hosts where somebody has just ended them by hand. `avoided` maps the
    hosts where somebody did so before to the time until which jobs avoid them. `silent` maps each
    host that the controller cannot reach to the reason.
    """

    pool: Pool
    lost: tuple[Release, ...]
    ended: Mapping[str, str]
    ending: frozenset[str]
    coordinators: frozenset[str]
    reclaimed: Mapping[str, str]
    interrupted: tuple[Release, ...] = ()
    avoided: Mapping[str, float] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class Queue(Protocol):
    """The queue of an engine. Each call raises KitError if the engine does not answer."""

    def service(self) -> Service:
        """Return the hosts of its controller, and how the controller is called."""

    def leads(self) -> bool:
        """Return whether the controller that calls this decides."""

    def look(
        self, rules: Rules, records: Sequence[Record], used: Mapping[str, float], now: float
    ) -> Seen:
        """Return the pool at the time `now`. `records` are those of jobs that have not ended."""

    def rules(self) -> Rules | None:
        """Return the stored rules of the pool; None if there are none."""

    def set_rules(self, document: Mapping[str, Any]) -> bool:
        """Store the rules of the pool; return whether they changed."""

    def spent(self) -> Spent:
        """Return the GPU-hours that people have used."""

    def set_spent(self, spent: Spent) -> None:
        """Store the GPU-hours that people have used."""

    def records(self) -> dict[str, Record]:
        """Return the records of all jobs of the queue, by name."""

    def add(self, record: Record) -> None:
        """Add a job; it replaces an earlier one with its name."""

    def update(self, record: Record) -> None:
        """Store the new record of a job."""

    def release(self, move: Release) -> None:
        """Make a job leave a host, at the end of its step."""

    def leave(self, move: Release, seconds: float) -> bool:
        """Make a job leave a host now, by the host's own engine; return whether it did in time."""

    def begin(self, move: Begin, now: float, waited: float) -> None:
        """Start a job on GPUs of a host; `waited` is its total time in the queue, in seconds.

        Raises:
            RefusedError: The host's engine does not run it.
        """

    def coordinate(self, job: str, *, on: bool) -> None:
        """Turn the coordinator of a job on or off."""

    def avoid(self, host: str, now: float) -> None:
        """Record that somebody on a host has ended a job there: jobs avoid it for some time."""

    def reclaim(self, host: str, who: str) -> None:
        """Record that `who` reclaims a host; "" gives it to the pool again.

        Raises:
            InputError: There is no such host.
        """
