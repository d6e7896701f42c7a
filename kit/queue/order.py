"""The order of the jobs of a queue. Pure.

First comes the level: the priority, which grows slowly while a job waits, so that each job begins
some time. Jobs of one level come by what their owners have used of their shares, then by arrival.
Use counts in slices, as if the whole pool worked for an hour: smaller differences do not stop jobs.
A job that has begun stays before its equals until its owner is a slice ahead of theirs.
"""

from __future__ import annotations

from kit.queue.pool import Pool, QueuedJob

AGE = 24 * 3600.0
"""Seconds of waiting for which a job stands `STEP` higher."""
STEP = 10
SLICE = 3600.0
"""Seconds in which a job that has waited long keeps the level with which it has begun, and of the
whole pool's work in a slice of use."""


def level(job: QueuedJob, now: float) -> float:
    """Return the level of a job: with the same one, what its owner has used decides."""
    if job.began is None:
        waited = max(0.0, now - job.waits) if job.waits is not None else 0.0
        return job.priority + STEP * (waited // AGE)
    if now - job.began < SLICE:
        return max(job.level, job.priority)
    return job.priority


def slices(pool: Pool) -> dict[str, int]:
    """Return how many slices each owner of a job has used of their share."""
    one = sum(len(host.gpus) for host in pool.hosts) * SLICE / 3600
    return {
        owner: int(pool.used.get(owner, 0.0) / pool.person(owner).share / max(one, 1.0))
        for owner in {job.owner for job in pool.jobs}
    }


def in_order(pool: Pool) -> list[QueuedJob]:
    """Return the jobs of a pool, the first to be served first."""
    used = slices(pool)
    usable = {host.name for host in pool.hosts if host.usable}

    def key(job: QueuedJob) -> tuple[float, int, bool, float, str]:
        # A job that began early does not come before those that it overtook; nor does one that
        # loses its hosts anyway come before those that would have to leave theirs.
        stays = job.began is not None and not job.early and not usable.isdisjoint(job.keeps)
        return -level(job, pool.now), used[job.owner] - stays, not stays, job.arrived, job.name

    return sorted(pool.jobs, key=key)
