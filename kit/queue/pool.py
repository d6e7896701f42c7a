"""The pool as values: its hosts, the people, and what their jobs want and have.

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

    `open`: its owner has lent it, and does not want it back. `until` is when that changes by its
    hours, or None. `there`: it answers; jobs lose one that does not, and may get it again.
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

    `least` and `most` are hosts, of which each gives `each` GPUs (None: all of its GPUs); or, with
    `each` 0, they are GPUs, on any hosts. `hosts` are those that it may use (empty: all). `roams`:
    each host sees its checkpoints. Otherwise they are on the hosts that trained.
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
    """A job of the queue, as it stands.

    `arrived` is when it was submitted. `waits` is since when it waits, `began` since when it has
    its hosts: one of the two is set. `level` is the level with which it began, see `decide.level`.
    `early`: it began before a job that stood before it, and gives way to that one. `home` are the
    hosts that it has trained on last, which it prefers; empty if there are none. Unless it roams,
    they have its newest checkpoint: it begins only with one of them, from which others get it.
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
        """The hosts of which it must have one, or it would lose what it has computed."""
        if self.wish.roams or not self.home:
            return frozenset()
        return self.home | self.keeps.keys()

    @property
    def keeps(self) -> dict[str, Had]:
        """The GPUs that it has and was not asked to release."""
        return {host: had for host, had in self.has.items() if not had.leaving}


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool at a moment. `used` are the GPU-hours of each person, which halve over a time."""

    now: float
    hosts: tuple[PoolHost, ...]
    people: tuple[Person, ...]
    jobs: tuple[QueuedJob, ...]
    used: Mapping[str, float] = field(default_factory=dict)

    def person(self, name: str) -> Person:
        """Return a person; those who are not named have a share of 1 and no limit."""
        return next((each for each in self.people if each.name == name), Person(name))
