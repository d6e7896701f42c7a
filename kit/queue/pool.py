"""The pool as values: its hosts, the people, and the requests and the GPUs of their jobs.

All times are in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kit.sharing import Person

Gpus = Mapping[str, tuple[str, ...]]
"""The ids of GPUs by host."""


@dataclass(frozen=True, slots=True)
class PoolHost:
    """A host with GPUs for the pool, in the order of the inventory.

    `open`: its owner has lent it, and has not reclaimed it. `until` is when that changes by its
    hours, or None. `there`: it answers; jobs lose a host that does not, and may get it again.
    """

    name: str
    gpus: tuple[str, ...]
    open: bool = True
    until: float | None = None
    there: bool = True

    @property
    def usable(self) -> bool:
        """Whether jobs may use it now."""
        return self.open and self.there


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of a job.

    `least` and `most` are numbers of hosts, with `each` GPUs on each (None: all of its GPUs). If
    `each` is 0, they are numbers of GPUs, on any hosts. `hosts` are those that it may use (empty:
    all). `roams`: each host sees its checkpoints. Otherwise they are on the hosts that trained.
    """

    least: int
    most: int
    each: int | None = None
    hosts: frozenset[str] = frozenset()
    roams: bool = True


@dataclass(frozen=True, slots=True)
class Had:
    """The GPUs of one host that a job has. `since` is when it got them.

    `leaving`: it was asked to release them, and still has them.
    """

    gpus: tuple[str, ...]
    since: float
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue in its present state.

    `arrived` is when it was submitted. `waits` is since when it waits, `began` since when it has
    its hosts: one of the two is set. `level` is the level with which it began, see `order.level`.
    `early`: it began before a job that precedes it in the order, and gives way to that one. `home`
    are its last hosts, which it prefers; empty if there are none. Unless it roams, they have its
    newest checkpoint: it begins only with one of them, from which other hosts get the checkpoint.
    """

    name: str
    owner: str
    priority: int
    arrived: float
    wish: Wish
    has: Mapping[str, Had] = field(default_factory=dict)
    waits: float | None = None
    began: float | None = None
    level: float = 0.0
    early: bool = False
    home: frozenset[str] = frozenset()

    @property
    def anchors(self) -> frozenset[str]:
        """The hosts with its checkpoint: without one of them it would lose its progress."""
        if self.wish.roams or not self.home:
            return frozenset()
        return self.home | self.keeps.keys()

    @property
    def keeps(self) -> dict[str, Had]:
        """The GPUs that it has, except those that it was asked to release."""
        return {host: had for host, had in self.has.items() if not had.leaving}


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool at a time. `used` are the GPU-hours of each person, with the half-life applied."""

    now: float
    hosts: tuple[PoolHost, ...]
    people: tuple[Person, ...]
    jobs: tuple[QueuedJob, ...]
    used: Mapping[str, float] = field(default_factory=dict)

    def person(self, name: str) -> Person:
        """Return a person by name; unlisted people have a share of 1 and no limit."""
        return next((each for each in self.people if each.name == name), Person(name))
