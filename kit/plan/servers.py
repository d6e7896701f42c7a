"""Inference services: where they run, and how checkpoints reach them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import Fault, nearest
from kit.model import EngineName, Inventory, Job, Lock, Server
from kit.plan import storage
from kit.plan.groups import services
from kit.plan.images import pinned
from kit.plan.types import Placement
from kit.plan.work import Holder, JobPlan, ServerPlan

MOST_HOLDERS = 4
"""Every host of a job has its checkpoints: so many of them offer theirs."""
MOST_ASKED = 16
"""Where hosts are asked by their addresses, as many are listed whether they have a part or not: a
server need not be started anew when the job's hosts change."""


def server_faults(servers: Sequence[Server], jobs: Sequence[Job]) -> list[Fault]:
    """Refuse servers of jobs that are not there, or whose checkpoints are the script's own."""
    faults = []
    by_name = {job.name: job for job in jobs}
    for server in servers:
        job = by_name.get(server.job)
        if job is None:
            fix = nearest(server.job, by_name) if jobs else "describe it in jobs/<name>.yaml"
            faults.append(Fault(server.name, ("job",), f"there is no job {server.job}", fix))
        elif job.train is None:
            what = f"{server.job} runs a script of its own, whose checkpoints kit does not know"
            faults.append(Fault(server.name, ("job",), what, "name a job with `train:`"))
    return faults


def server_plan(
    inventory: Inventory,
    hashes: tuple[str, str],
    lock: Lock | None,
    server: Server,
    placements: tuple[Placement, ...],
    job: JobPlan,
) -> ServerPlan:
    """Decide where a server's checkpoints come from; `hashes` are the inventory's and its own."""
    host_network = inventory.engine is EngineName.SWARM and inventory.network.driver == "host"
    mounted = next(mount for mount in job.mounts if mount.target == storage.CHECKPOINTS)
    mount = storage.read_only(mounted)
    at_home = {placement.host.name for placement in job.placements}
    away = [part.host.name for part in placements if part.host.name not in at_home]
    holders = _holders(inventory.engine, job, placements)
    return ServerPlan(
        server=server,
        placements=placements,
        services=services(server.name, "serve", placements),
        homes=tuple(placement.host.name for placement in job.placements),
        holders=holders,
        sources=tuple(_sources(inventory, server, holders, host_network=host_network)),
        # A folder need not be there on a host that has no part in the job.
        mount=None if mount.kind == "bind" and away else mount,
        holder_mount=mount,
        volumes=tuple(volume for volume in job.volumes if volume.key == mount.source),
        alias=alias(server),
        host_network=host_network,
        inventory_hash=hashes[0],
        job_hash=hashes[1],
        image=pinned(server.image, lock),
    )


def _holders(
    engine: EngineName, job: JobPlan, placements: Sequence[Placement]
) -> tuple[Holder, ...]:
    """Return who offers the job's checkpoints; nobody where all see one and the same folder."""
    hosts = {part.host.name: part.host for part in job.placements}
    alone = len({*hosts, *(part.host.name for part in placements)}) == 1
    if engine is EngineName.LOCAL or job.shared_checkpoints or alone or not placements:
        return ()
    found: list[Holder] = []
    left = MOST_HOLDERS
    for service in job.services:
        replicas = min(left, len(service.hosts))
        if replicas:
            own = tuple(hosts[name] for name in service.hosts)
            name = f"checkpoints-{service.name.removeprefix('train-')}"
            found.append(Holder(name, own, replicas, service.constraint))
        left -= replicas
    return tuple(found)


def _sources(
    inventory: Inventory, server: Server, holders: Sequence[Holder], *, host_network: bool
) -> Iterator[str]:
    if not holders:
        return
    if inventory.engine is EngineName.SWARM and not host_network:
        yield f"http://{alias(server)}:{server.transfer_port}"
        return
    hosts = [host for host in inventory.hosts if host.gpus]
    if len(hosts) > MOST_ASKED:
        # Swarm may move them among all, Compose leaves them where they are.
        swarm = inventory.engine is EngineName.SWARM
        hosts = [h for holder in holders for h in (holder.hosts if swarm else holder.first)]
    for host in hosts:
        yield f"http://{host.address}:{server.transfer_port}"


def alias(server: Server) -> str:
    """Return the one name on the overlay of all that offer checkpoints to a server."""
    return f"{server.name}-checkpoints"
