"""The interface of the queue's controller and commands to the engine that runs the jobs."""

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
    """The pool as the engine shows it, and what has happened to its jobs by itself.

    `lost` are hosts that do not answer, and that jobs still have. `ended` is the state of each job
    that has ended, `ending` are jobs of which some hosts have completed. `coordinators` are the
    jobs whose coordinator is on. `reclaimed` is who has each host that its owner wants.
    `interrupted` are jobs on hosts where somebody has just ended them by hand, `avoided` the hosts
    where somebody did so before, each until a time. `silent` is why the controller cannot reach a
    host.
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
    """The queue of an engine. Each call may raise KitError: it does not answer."""

    def service(self) -> Service:
        """Return where its controller is installed, and how it is called."""

    def leads(self) -> bool:
        """Return whether the controller that uses it is the one that decides."""

    def look(
        self, rules: Rules, records: Sequence[Record], used: Mapping[str, float], now: float
    ) -> Seen:
        """Return the pool at a time. `records` are those of jobs that have not ended."""

    def rules(self) -> Rules | None:
        """Return the pool that was handed over last; None if there is none."""

    def set_rules(self, document: Mapping[str, Any]) -> bool:
        """Hand over the pool; return whether that changed anything."""

    def spent(self) -> Spent:
        """Return what people have used."""

    def set_spent(self, spent: Spent) -> None:
        """Note what people have used."""

    def records(self) -> dict[str, Record]:
        """Return the records of all jobs of the queue, by name."""

    def add(self, record: Record) -> None:
        """Add a job, in place of an earlier one with its name."""

    def update(self, record: Record) -> None:
        """Note what has become of a job."""

    def release(self, move: Release) -> None:
        """Let a job leave a host, at the end of its step."""

    def leave(self, move: Release, seconds: float) -> bool:
        """Let a job leave a host now, by the host's own engine; return whether it has in time."""

    def begin(self, move: Begin, now: float, waited: float) -> None:
        """Let a job have GPUs of a host, after it has waited for so many seconds in all.

        Raises:
            RefusedError: The host's engine does not run it.
        """

    def coordinate(self, job: str, *, on: bool) -> None:
        """Turn the coordinator of a job on or off."""

    def avoid(self, host: str, now: float) -> None:
        """Note that somebody on a host has ended a job there: others stay away for a while."""

    def reclaim(self, host: str, who: str) -> None:
        """Note that its owner wants a host; "" gives it to the pool again.

        Raises:
            InputError: There is no such host.
        """
