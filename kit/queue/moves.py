"""The actions that bring the pool to the decided state. Pure.

A GPU is released before another job gets it, and a job begins with its minimum or not at all.
Several turns may therefore pass until a decision is fully carried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kit.queue.decide import Decision
from kit.queue.pool import Gpus, Had, Pool, QueuedJob

UP = 30.0
"""Seconds until a new host of a job trains, and can give its checkpoint to others."""


@dataclass(frozen=True, slots=True)
class Release:
    """A job leaves a host, after the step that it computes."""

    job: str
    host: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A job gets free GPUs of a host."""

    job: str
    host: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """The actions now, in any order."""

    releases: tuple[Release, ...]
    begins: tuple[Begin, ...]


def moves(pool: Pool, decision: Decision) -> Moves:
    """Return the actions that are possible now."""
    taken = {(host, gpu) for job in pool.jobs for host, had in job.has.items() for gpu in had.gpus}
    releases = tuple(each for job in pool.jobs for each in _releases(job, decision))
    begins = tuple(each for job in pool.jobs for each in _begins(job, decision, taken, pool.now))
    return Moves(releases, begins)


def _releases(job: QueuedJob, decision: Decision) -> Iterator[Release]:
    wanted = decision.gives.get(job.name, {})
    for host, had in job.keeps.items():
        if not _same(had, wanted.get(host)):
            yield Release(job.name, host)


def _begins(
    job: QueuedJob, decision: Decision, taken: set[tuple[str, str]], now: float
) -> Iterator[Begin]:
    wanted = decision.gives.get(job.name, {})
    ready = {
        host: gpus
        for host, gpus in wanted.items()
        if host not in job.has and not any((host, gpu) in taken for gpu in gpus)
    }
    stays = {host: had.gpus for host, had in job.keeps.items() if _same(had, wanted.get(host))}
    if _number(job, ready) + _number(job, stays) < job.wish.least:
        return
    if job.anchors and not job.anchors & (ready.keys() | stays.keys()):
        return
    for host, gpus in _first(job, ready, stays, now).items():
        yield Begin(job.name, host, gpus)


def _first(job: QueuedJob, ready: Gpus, stays: Gpus, now: float) -> Gpus:
    """Return the GPUs where a job begins now: first only hosts with its checkpoint, if enough.

    A host without the checkpoint, if up before the others, would begin at the first step.
    """
    up = any(now - job.keeps[host].since >= UP for host in stays if host in job.anchors)
    if up or not job.anchors:
        return ready
    at_home = {host: gpus for host, gpus in ready.items() if host in job.home}
    enough = _number(job, at_home) + _number(job, stays) >= job.wish.least
    return at_home if enough else ready


def _same(had: Had, gpus: tuple[str, ...] | None) -> bool:
    return set(had.gpus) == set(gpus or ())


def _number(job: QueuedJob, gpus: Gpus) -> int:
    """Return the number of hosts, or of GPUs for a job that counts GPUs."""
    return len(gpus) if job.wish.each != 0 else sum(map(len, gpus.values()))
