"""The plan of the queue for the hours in which hosts are lent, if no job ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kit.queue.decide import STILL, decide
from kit.queue.document import Rules
from kit.queue.hours import lent
from kit.queue.pool import Had, Pool, PoolHost, QueuedJob

DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, in seconds since the epoch, and the number of hosts that each job has then."""

    time: float
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    hosts: dict[str, tuple[str, ...]]


def forecast(pool: Pool, rules: Rules, until: float) -> Iterator[Moment]:
    """Yield the hosts of jobs now, and after each host is lent or taken back until a time."""
    before: tuple[str, ...] = _open(pool)
    yield Moment(pool.now, (), (), _hosts(pool := _settled(pool)))
    for time in _changes(rules, pool.now, until):
        hosts = tuple(_at(host, rules, time) for host in pool.hosts)
        pool = _settled(replace(pool, now=time, hosts=hosts))
        now = _open(pool)
        opens = tuple(name for name in now if name not in before)
        closes = tuple(name for name in before if name not in now)
        yield Moment(time, opens, closes, _hosts(pool))
        before = now


def starts(pool: Pool, rules: Rules) -> dict[str, float]:
    """Return the start times of waiting jobs that begin within a day because a host is lent."""
    waits = {job.name for job in pool.jobs if job.began is None}
    found: dict[str, float] = {}
    for moment in forecast(pool, rules, pool.now + DAY):
        for name in waits & moment.hosts.keys() - found.keys():
            if moment.time > pool.now:
                found[name] = moment.time
    return found


def _changes(rules: Rules, now: float, until: float) -> list[float]:
    """Return the times at which an owner lends a host, or takes it back."""
    found = set[float]()
    for _, _, hours in rules.hosts:
        time: float | None = now
        while hours and time is not None and time < until:
            time = lent(hours, time)[1]
            if time is not None and time <= until:
                found.add(time)
    return sorted(found)


def _at(host: PoolHost, rules: Rules, time: float) -> PoolHost:
    """Return a host as it is at a time, by its hours. A reclaimed host stays closed."""
    hours = next((each for name, _, each in rules.hosts if name == host.name), None)
    reclaimed = not host.open and host.until is None
    if hours is None or reclaimed:
        return host
    is_open, until = lent(hours, time)
    return replace(host, open=is_open, until=until)


def _settled(pool: Pool) -> Pool:
    """Return the pool after its jobs have received the GPUs of the decision."""
    decision, since = decide(pool), pool.now - 2 * STILL

    def placed(job: QueuedJob) -> QueuedJob:
        gives = decision.gives.get(job.name)
        if gives is None:
            waits = pool.now if job.began is not None else job.waits
            return replace(job, has={}, began=None, waits=waits)
        has = {host: Had(gpus, since) for host, gpus in gives.items()}
        home = frozenset() if job.wish.roams else frozenset(has)
        return replace(job, has=has, began=job.began or pool.now, waits=None, home=home)

    return replace(pool, jobs=tuple(map(placed, pool.jobs)))


def _open(pool: Pool) -> tuple[str, ...]:
    return tuple(host.name for host in pool.hosts if host.open)


def _hosts(pool: Pool) -> dict[str, tuple[str, ...]]:
    return {job.name: tuple(job.has) for job in pool.jobs if job.has}
