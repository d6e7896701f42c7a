"""Inference services: their hosts, and whether checkpoints are copied between hosts."""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import Fault
from kit.model import Job, Server
from kit.plan import storage
from kit.plan.types import Placement
from kit.plan.work import JobPlan, ServerPlan
from trainer.contract.words import nearest


def server_faults(servers: Sequence[Server], jobs: Sequence[Job]) -> list[Fault]:
    """Reject servers whose job does not exist or writes checkpoints in a format of its own."""
    faults = []
    by_name = {job.name: job for job in jobs}
    for server in servers:
        job = by_name.get(server.job)
        if job is None:
            fix = nearest(server.job, by_name) if jobs else "describe it in jobs/<name>.yaml"
            faults.append(Fault(server.name, ("job",), f"there is no job {server.job}", fix))
        elif job.train is None:
            what = f"{server.job} runs a script, whose checkpoints kit cannot read"
            faults.append(Fault(server.name, ("job",), what, "name a job with `train:`"))
    return faults


def server_plan(
    hashes: tuple[str, str],
    image: str,
    server: Server,
    placements: tuple[Placement, ...],
    job: JobPlan,
) -> ServerPlan:
    """Decide how a server's hosts get the job's checkpoints.

    `hashes` are those of the inventory and of the server. `image` is pinned.
    """
    mounted = next(mount for mount in job.mounts if mount.target == storage.CHECKPOINTS)
    at_home = {host.name for host in job.hosts}
    serving = {placement.host.name for placement in placements}
    alone = len(at_home | serving) == 1
    return ServerPlan(
        server=server,
        placements=placements,
        job=job,
        mount=storage.read_only(mounted),
        everywhere=serving <= at_home,
        travels=bool(placements) and not job.shared_checkpoints and not alone,
        volumes=tuple(volume for volume in job.volumes if volume.key == mounted.source),
        inventory_hash=hashes[0],
        job_hash=hashes[1],
        image=image,
    )
