"""One turn of the queue: the decision, the actions now, and the new state of each job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kit.queue.decide import STILL, Decision, decide
from kit.queue.moves import Moves, moves
from kit.queue.order import level
from kit.queue.pool import Gpus, Pool, QueuedJob


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `jobs` have their new state, but the GPUs from before the moves.

    `reasons` are the reasons why jobs wait.
    """

    decision: Decision
    moves: Moves
    jobs: tuple[QueuedJob, ...]

    reasons: Mapping[str, str]


def turn(pool: Pool) -> Turn:
    """Decide, and record which jobs begin, wait again, or have begun before others."""
    # First: without a running controller, the hosts where jobs trained were not recorded.
    jobs = tuple(replace(job, home=_home(job, pool.now)) for job in pool.jobs)
    pool = replace(pool, jobs=jobs)
    decision = decide(pool)
    now = moves(pool, decision)
    begins = {each.job for each in now.begins}
    noted = tuple(_noted(job, pool.now, decision, begins) for job in pool.jobs)
    held = {
        (host, gpu): job.name
        for job in pool.jobs
        for host, had in job.has.items()
        for gpu in had.gpus
    }
    soon = {
        job.name: _soon(decision.gives[job.name], held)
        for job in noted
        if job.began is None and job.name in decision.gives
    }
    return Turn(decision, now, noted, {**decision.reasons, **soon})


def _soon(gives: Gpus, held: Mapping[tuple[str, str], str]) -> str:
    """Return the reason of a job that begins, or waits for GPUs that other jobs still hold."""
    who = {
        (held[host, gpu], host)
        for host, gpus in gives.items()
        for gpu in gpus
        if (host, gpu) in held
    }
    leaves = ", ".join(f"{job} has left {host}" for job, host in sorted(who)[:3])
    return f"begins as soon as {leaves}" if leaves else "begins now"


def _home(job: QueuedJob, now: float) -> frozenset[str]:
    """Return the last hosts of a job: those that it has had for at least a minute."""
    old = {host for host, had in job.keeps.items() if now - had.since >= STILL}
    return frozenset(old) or job.home or frozenset(job.keeps)


def _noted(job: QueuedJob, now: float, decision: Decision, begins: Collection[str]) -> QueuedJob:
    if job.name not in decision.gives:
        if job.began is None:
            return job
        return replace(job, began=None, waits=now, level=0.0, early=False)
    early = job.name in decision.early
    if job.began is None and job.name in begins:
        return replace(job, began=now, waits=None, level=level(job, now), early=early)
    return replace(job, early=early)
