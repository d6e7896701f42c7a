"""Sharing of the hosts, as values: the hours in which hosts are lent, people, requests of jobs.

`kit.config` makes them, `kit.plan` and `kit.queue` read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time

ALL_DAY = (time(0), time(0))
"""From midnight to midnight."""


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours in which a host is lent, in the local time of a zone; None: not on such days.

    A time that ends before it begins ends on the next day: from 19:00 on Friday to 08:00 on
    Saturday belongs to `weekdays`. `console`: a login at the host's console takes it back.
    """

    zone: str
    weekdays: tuple[time, time] | None = None
    weekends: tuple[time, time] | None = None
    console: bool = False


@dataclass(frozen=True, slots=True)
class Person:
    """An owner of jobs: `share` is a weight among owners, `most` the GPUs at the same time."""

    name: str
    share: float = 1.0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rules of a pool. Past use counts half after `half_life` seconds."""

    people: tuple[Person, ...] = ()
    half_life: int = 7 * 24 * 3600


EQUAL = Sharing()
"""All people are equal."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The settings of a job for the queue.

    It requests at least `least` and at most `most` hosts, or GPUs on any hosts if `counts_gpus`.
    `most` is None without a limit.
    """

    owner: str
    priority: int
    least: int
    most: int | None
    counts_gpus: bool = False
