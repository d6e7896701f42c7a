"""The order of the jobs of a queue. Pure.

The first criterion is the level: the priority, which grows slowly while a job waits, so that each
job begins some time. Jobs of one level are sorted by the use of their owners' shares, then by
arrival. Use counts in slices, the work of the whole pool in an hour: smaller differences do not
stop jobs. A running job stays before its equals until its owner has used a slice more than theirs.
"""

from __future__ import annotations

from kit.queue.pool import Pool, QueuedJob

AGE = 24 * 3600.0
"""Seconds of waiting that raise the level of a job by `STEP`."""
STEP = 10
SLICE = 3600.0
"""Seconds for which a job keeps the level with which it began. Also the time of a slice of use, the
work of the whole pool."""


def level(job: QueuedJob, now: float) -> float:
    """Return the level of a job; at equal levels, the use of the owners decides."""
    if job.began is None:
        waited = max(0.0, now - job.waits) if job.waits is not None else 0.0
        return job.priority + STEP * (waited // AGE)
    if now - job.began < SLICE:
        return max(job.level, job.priority)
    return job.priority


def slices(pool: Pool) -> dict[str, int]:
    """Return the slices that each owner of a job has used, divided by their share."""
    one = sum(len(host.gpus) for host in pool.hosts) * SLICE / 3600
    return {
        owner: int(pool.used.get(owner, 0.0) / pool.person(owner).share / max(one, 1.0))
        for owner in {job.owner for job in pool.jobs}
    }


def in_order(pool: Pool) -> list[QueuedJob]:
    """Return the jobs of a pool in the order in which they are served."""
    used = slices(pool)
    usable = {host.name for host in pool.hosts if host.usable}

    def key(job: QueuedJob) -> tuple[float, int, bool, float, str]:
        # A job that began early does not come before those that it overtook. A job that loses all
        # its hosts anyway does not come before those that would have to leave theirs.
        stays = job.began is not None and not job.early and not usable.isdisjoint(job.keeps)
        return -level(job, pool.now), used[job.owner] - stays, not stays, job.arrived, job.name

    return sorted(pool.jobs, key=key)
