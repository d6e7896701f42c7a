"""The order of the jobs of a queue. Pure.

First comes the level: the priority, which grows slowly while a job waits, so that each job begins
some time. Jobs of one level come by what their owners have used of their shares, then by arrival.
A job that has begun stays before its equals until their owners are a slice of time behind.
"""

from __future__ import annotations

from kit.queue.pool import Pool, QueuedJob

AGE = 24 * 3600.0
"""Seconds of waiting for which a job stands `STEP` higher."""
STEP = 10
SLICE = 3600.0
"""Seconds in which a job that has waited long keeps the level with which it has begun, and by which
it is ahead of its equals."""


def level(job: QueuedJob, now: float) -> float:
    """Return the level of a job: with the same one, what its owner has used decides."""
    if job.began is None:
        waited = max(0.0, now - job.waits) if job.waits is not None else 0.0
        return job.priority + STEP * (waited // AGE)
    if now - job.began < SLICE:
        return max(job.level, job.priority)
    return job.priority


def in_order(pool: Pool) -> list[QueuedJob]:
    """Return the jobs of a pool, the first to be served first."""
    owners = {job.owner for job in pool.jobs}
    shares = {owner: pool.person(owner).share for owner in owners}

    def key(job: QueuedJob) -> tuple[float, float, float, str]:
        share = shares[job.owner]
        spent = pool.used.get(job.owner, 0.0) / share
        if job.began is not None and not job.early:
            gpus = sum(len(had.gpus) for had in job.has.values())
            spent -= gpus * SLICE / 3600 / share
        return -level(job, pool.now), spent, job.arrived, job.name

    return sorted(pool.jobs, key=key)
