"""The pool, made from the hosts and the jobs that an engine shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kit.queue.carrier import Seen
from kit.queue.document import Rules
from kit.queue.hours import lent
from kit.queue.moves import Release
from kit.queue.pool import Had, Pool, PoolHost, QueuedJob, Wish
from kit.queue.record import COMPLETED, FAILED, Record

AVOIDED_FOR = 300.0
"""Seconds for which jobs avoid a host where somebody has ended a job by hand."""
CLAIM_LASTS = 600.0
"""Seconds after which the claim of a deploy expires: the deploy may have been interrupted."""
BY_HAND = frozenset({143, 130})
"""The exit statuses of a container that was asked to leave its job, by SIGTERM or SIGINT."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host that a job may use.

    `on`: the queue has given the job `gpus` of it at the time `since`, and has not taken them back.
    `living`: a container may still hold them. `completed`: the newest container has completed;
    `failed`: it has failed, and is not restarted. `by_hand`: somebody has ended it there.
    """

    on: bool
    living: bool
    gpus: tuple[str, ...] = ()
    since: float = 0.0
    completed: bool = False
    failed: bool = False
    by_hand: bool = False

    @property
    def held(self) -> bool:
        """Whether its GPUs are not available to other jobs."""
        return self.on or self.living


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that has not ended: its request, its hosts, and whether its coordinator is on."""

    record: Record
    wish: Wish
    places: Mapping[str, Place]
    coordinated: bool


@dataclass(frozen=True, slots=True)
class HostView:
    """A host of the pool as the engine shows it.

    `there`: it answers; `known`: it has listed its work. `taken` are the GPUs that are held outside
    the queue. `reclaimed` is the person who wants it, or "". `avoided` is when somebody ended a job
    there by hand, or 0. `silent` is why the controller cannot reach it, or "".
    """

    there: bool = False
    known: bool = True
    taken: frozenset[str] = frozenset()
    reclaimed: str = ""
    avoided: float = 0.0
    silent: str = ""

    def avoided_until(self, now: float) -> float | None:
        """Return the time until which jobs avoid it, or None."""
        until = self.avoided + AVOIDED_FOR
        return until if self.avoided and until > now else None


def see(
    rules: Rules,
    jobs: Iterable[JobView],
    hosts: Mapping[str, HostView],
    used: Mapping[str, float],
    now: float,
) -> Seen:
    """Return the pool at the time `now`; `used` are the GPU-hours of each person."""
    jobs = list(jobs)
    ended = {each.record.job: state for each in jobs if (state := _end(each.places))}
    ending = {each.record.job for each in jobs if _ends(each.places)} - ended.keys()
    left = [each for each in jobs if each.record.job not in {*ended, *ending}]
    there = {name for name, *_ in rules.hosts if hosts.get(name, HostView()).there}
    pooled = tuple(_hosts(rules, hosts, left, now))
    queued = tuple(_queued(each, there) for each in left)
    return Seen(
        pool=Pool(now, pooled, rules.sharing.people, queued, used),
        lost=tuple(
            Release(each.record.job, host)
            for each in left
            for host, place in each.places.items()
            if place.on and host not in there
        ),
        ended=ended,
        ending=frozenset(ending),
        coordinators=frozenset(each.record.job for each in left if each.coordinated),
        reclaimed={name: view.reclaimed for name, view in hosts.items() if view.reclaimed},
        interrupted=tuple(
            Release(each.record.job, host)
            for each in left
            for host, place in each.places.items()
            if place.on and place.by_hand and host in there
        ),
        silent={name: view.silent for name, view in hosts.items() if view.silent},
        avoided={name: until for name, view in hosts.items() if (until := view.avoided_until(now))},
    )


def _queued(job: JobView, there: set[str]) -> QueuedJob:
    has = {
        host: Had(place.gpus, place.since, leaving=not place.on)
        for host, place in job.places.items()
        if place.held and host in there
    }
    return job.record.to_job(job.wish, has)


def _on(places: Mapping[str, Place]) -> list[Place]:
    return [place for place in places.values() if place.on]


def _ends(places: Mapping[str, Place]) -> bool:
    return any(place.completed for place in _on(places))


def _end(places: Mapping[str, Place]) -> str | None:
    """Return the state of a job that has ended by itself; None if it has not.

    A failed host does not count if another host has completed.
    """
    on = _on(places)
    if not on or any(place.living or not (place.completed or place.failed) for place in on):
        return None
    return COMPLETED if _ends(places) else FAILED


def _hosts(
    rules: Rules, hosts: Mapping[str, HostView], jobs: Iterable[JobView], now: float
) -> Iterator[PoolHost]:
    """Yield the hosts with the GPUs that are free or held by the queue.

    A host that has not listed its work yet has only the GPUs that jobs already hold.
    """
    kept: dict[str, set[str]] = {}
    for job in jobs:
        for host, place in job.places.items():
            if place.on:
                kept.setdefault(host, set()).update(place.gpus)
    for name, gpus, hours in rules.hosts:
        view = hosts.get(name, HostView())
        is_open, until = lent(hours, now) if hours else (True, None)
        if view.reclaimed:
            is_open, until = False, None
        elif avoided := view.avoided_until(now):
            is_open, until = False, avoided
        if not view.known:
            gpus = tuple(gpu for gpu in gpus if gpu in kept.get(name, ()))
        free = tuple(gpu for gpu in gpus if gpu not in view.taken)
        yield PoolHost(name, free, is_open, until, view.there)
