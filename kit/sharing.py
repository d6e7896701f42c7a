"""How people share the hosts, as values: hours in which hosts are lent, people, what jobs want.

`kit.config` makes them, `kit.plan` and `kit.queue` read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time

ALL_DAY = (time(0), time(0))
"""From midnight to midnight."""


@dataclass(frozen=True, slots=True)
class Hours:
    """When a host is lent, by the clock of a zone; None: not on such days.

    A time that ends before it begins ends on the next day: from 19:00 on Friday to 08:00 on
    Saturday belongs to `weekdays`. `console`: a login at the host's console takes it back.
    """

    zone: str
    weekdays: tuple[time, time] | None = None
    weekends: tuple[time, time] | None = None
    console: bool = False


@dataclass(frozen=True, slots=True)
class Person:
    """Owners of jobs. `share` weighs against the others', `most` is the number of GPUs at once."""

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
    """The keys of a job for the queue.

    It wants at least `least` and at most `most` hosts, or GPUs on any hosts if `counts_gpus`.
    None: as many as there are.
    """

    owner: str
    priority: int
    least: int
    most: int | None
    counts_gpus: bool = False
