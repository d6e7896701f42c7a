"""Servers: the jobs that they need, and whether checkpoints are copied between hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kit import ranges
from kit.errors import Fault
from kit.jobs import Job
from kit.model import Host, Inventory, JobHosts
from kit.plan import storage
from kit.plan.types import Placement
from kit.plan.work import Checkpoints, JobPlan, ServerPlan
from kit.servers import Server
from trainer.contract.words import nearest


def server_faults(
    inventory: Inventory, servers: Sequence[Server], jobs: Sequence[Job]
) -> list[Fault]:
    """Reject built-in servers with an unsuitable job or image, and proxies on unknown hosts."""
    by_name, hosts = {job.name: job for job in jobs}, [host.name for host in inventory.hosts]
    faults = [_fault(server, by_name) for server in servers if server.own is None]
    for server in servers:
        name = server.proxy.host if server.proxy else None
        if name is not None and name not in hosts:
            what, fix = f"{name} is not in the inventory", nearest(name, hosts[:1000])
            faults.append(Fault(server.name, ("proxy", "host"), what, fix))
    return [fault for fault in faults if fault is not None]


def _fault(server: Server, by_name: Mapping[str, Job]) -> Fault | None:
    job = by_name.get(server.job)
    if job is None:
        fix = nearest(server.job, by_name) if by_name else "describe it in jobs/<name>.yaml"
        return Fault(server.name, ("job",), f"there is no job {server.job}", fix)
    if server.handler is not None:
        what = f"{job.name} has `train:`, whose model the server itself knows"
        return Fault(server.name, ("handler",), what, "leave it out") if job.train else None
    if job.train is None:
        what = f"{server.job} runs a script, whose checkpoints kit cannot read"
        fix = "name a job with `train:`, or write `handler:`, a class of yours that reads them"
        return Fault(server.name, ("job",), what, fix)
    if _repository(server.image) != _repository(job.image):
        what = f"the server of job {job.name} needs the trainer, which {job.image} has"
        fix = (
            f"write the image of {job.file} or another tag of it; for a server of your own, write "
            "`command:` in place of `job:`"
        )
        return Fault(server.name, ("image",), what, fix)
    return None


def handler_faults(servers: Sequence[ServerPlan]) -> list[Fault]:
    """Reject handlers on hosts without the files of their job, which no endpoint offers."""
    faults = []
    for server in servers:
        checkpoints = server.checkpoints
        if server.server.handler is None or checkpoints is None:
            continue
        at_home = {host.name for host in checkpoints.job.hosts}
        strange = [each.host.name for each in server.placements if each.host.name not in at_home]
        if strange and not checkpoints.job.shared_checkpoints:
            what = f"job {checkpoints.job.name} writes no files on {', '.join(strange)}"
            names = ", ".join(sorted(at_home))
            fix = f"write `hosts: {{names: [{names}]}}`, or mount an NFS export at /checkpoints"
            faults.append(Fault(server.name, ("hosts",), what, fix))
    return faults


def able_hosts(hosts: Iterable[Host], wanted: JobHosts) -> tuple[Host, ...]:
    """Return the hosts on which a job or a server may get GPUs, now or after a split."""
    names = ranges.members(wanted.names)
    return tuple(host for host in hosts if host.gpus and (not names or host.name in names))


def _repository(image: str) -> str:
    """Return an image's name without registry, folders, tag and digest.

    Registries mirror each other, and tags are versions of the same image.
    """
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def server_plan(
    hashes: tuple[str, str],
    image: str,
    server: Server,
    placements: tuple[Placement, ...],
    able: tuple[Host, ...],
    job: JobPlan | None,
) -> ServerPlan:
    """Decide a server's mounts, and how its hosts get the checkpoints of its `job`, if it has one.

    `hashes` are those of the inventory and of the server. `image` is pinned.
    """
    own = server.own.mounts if server.own else ()
    travels = server.handler is None
    checkpoints = _checkpoints(placements, job, travels=travels) if job else None
    volumes = storage.volumes(own, own)
    if checkpoints:
        key = checkpoints.mount.source
        volumes = tuple(volume for volume in checkpoints.job.volumes if volume.key == key)
    return ServerPlan(
        server=server,
        placements=placements,
        able=able,
        checkpoints=checkpoints,
        mounts=storage.mount_points(own),
        volumes=volumes,
        inventory_hash=hashes[0],
        job_hash=hashes[1],
        image=image,
    )


def _checkpoints(placements: Sequence[Placement], job: JobPlan, *, travels: bool) -> Checkpoints:
    mounted = next(mount for mount in job.mounts if mount.target == storage.CHECKPOINTS)
    at_home = {host.name for host in job.hosts}
    serving = {placement.host.name for placement in placements}
    alone = len(at_home | serving) == 1
    return Checkpoints(
        job=job,
        mount=storage.read_only(mounted),
        everywhere=serving <= at_home,
        travels=travels and bool(placements) and not job.shared_checkpoints and not alone,
    )
