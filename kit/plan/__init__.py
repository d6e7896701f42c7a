"""The plan: a pure function of the inventory and the jobs that decides every number."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict

from kit.errors import FaultsError
from kit.model import EngineName, Host, Inventory, Job, Lock, Server
from kit.plan import storage
from kit.plan.allocate import allocate
from kit.plan.clashes import name_faults, port_faults
from kit.plan.exchange import exchange
from kit.plan.gpus import precision
from kit.plan.groups import HOST_LABEL, services
from kit.plan.images import images, network_image, pinned, served_registry, unlocked
from kit.plan.notes import lock_notes, notes, server_notes
from kit.plan.servers import server_faults, server_plan
from kit.plan.traffic import batch, traffic
from kit.plan.types import Placement, Rendezvous, Service
from kit.plan.work import JobPlan, Plan, Work, manager_of, stack_of
from trainer.contract.keys import written

RENDEZVOUS_PORT = 29400
"""torchrun's own default for the c10d rendezvous."""
PORTS = 1000
"""On a host's network every job needs a port of its own: one of so many from RENDEZVOUS_PORT on."""
IMAGE_LAUNCHER = "/opt/kit/trainer/launch.py"
MOUNTED_LAUNCHER = "/kit/launch.py"

FAULT_VARIABLES = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_INCLUDE_STACK_TRACE": "False",
}
"""NCCL's flight recorder under its old and its new name, so that a hang can be explained: each rank
writes what it waited for to /tmp/nccl_trace_rank_<rank>, which `torchfrtrace` reads."""


def make_plan(
    inventory: Inventory,
    jobs: Sequence[Job],
    lock: Lock | None = None,
    servers: Sequence[Server] = (),
) -> Plan:
    """Decide hosts, GPUs, ranks, batch sizes, ports and names.

    `lock` holds the digests that the images are pinned to; None where there is no lock.

    Raises:
        FaultsError: The jobs do not fit the inventory, or each other.
    """
    training, inferring, faults = allocate(inventory, jobs, servers)
    if faults := [*faults, *server_faults(servers, jobs)]:
        raise FaultsError(faults)
    inventory_hash = _version(inventory)
    plans = [
        _job_plan(inventory, inventory_hash, lock, job, placements)
        for job, placements in zip(jobs, training, strict=True)
    ]
    by_name = {plan.name: plan for plan in plans}
    serving = [
        server_plan(
            inventory,
            (inventory_hash, _version(server)),
            lock,
            server,
            placements,
            by_name[server.job],
        )
        for server, placements in zip(servers, inferring, strict=True)
    ]
    names = images(inventory, jobs, servers)
    missing = unlocked(names, lock)
    work: list[Work] = [*plans, *serving]
    faults = port_faults(inventory, work) + name_faults(inventory, work)
    if faults:
        raise FaultsError(faults)
    return Plan(
        file=inventory.file,
        cluster=inventory.cluster,
        engine=inventory.engine,
        network=inventory.network,
        heartbeat=inventory.heartbeat,
        hosts=inventory.hosts,
        jobs=tuple(plans),
        servers=tuple(serving),
        notes=(*notes(inventory, plans), *server_notes(serving), *lock_notes(missing)),
        images=names,
        unlocked=missing,
        network_image=network_image(inventory, lock),
        registry=served_registry(inventory, lock),
    )


def _job_plan(
    inventory: Inventory,
    inventory_hash: str,
    lock: Lock | None,
    job: Job,
    placements: tuple[Placement, ...],
) -> JobPlan:
    engine, hosts = inventory.engine, [placement.host for placement in placements]
    host_network = engine is EngineName.SWARM and inventory.network.driver == "host"
    host_network |= engine is EngineName.COMPOSE and (
        len(hosts) > 1 or inventory.network.driver == "host" or inventory.network.infiniband
    )
    fewest = job.hosts.fewest if job.hosts.fewest is not None else len(hosts)
    world_size = sum(placement.processes for placement in placements)
    mounts = storage.mounts(job)
    infiniband = inventory.network.infiniband
    moved = traffic(job, placements)
    return JobPlan(
        job=job,
        placements=placements,
        services=services(job.name, "train", placements),
        rendezvous=_rendezvous(inventory, job, hosts, host_network),
        nodes=(fewest, len(hosts)),
        batch=batch(job, world_size),
        traffic=moved,
        exchange=exchange(job, placements, moved),
        precision=precision(engine, job, placements),
        variables=tuple(_variables(inventory, job).items()),
        host_network=host_network,
        launcher=IMAGE_LAUNCHER if job.train else MOUNTED_LAUNCHER,
        mounts=storage.mount_points(mounts),
        volumes=storage.volumes(mounts),
        shared_checkpoints=storage.shared_checkpoints(mounts),
        memlock=-1 if infiniband and job.limits.memlock is None else job.limits.memlock,
        stack_limit=job.limits.stack,
        inventory_hash=inventory_hash,
        job_hash=_version(job),
        image=pinned(job.image, lock),
    )


def _version(section: Inventory | Job | Server) -> str:
    content = asdict(section)
    if isinstance(section, Job):  # A new key that a job does not use must not change its version.
        for name in ("train", "exchange", "checkpoint"):
            if part := getattr(section, name):
                content[name] = written(part, planned=False)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _rendezvous(
    inventory: Inventory, job: Job, hosts: list[Host], host_network: bool
) -> Rendezvous:
    own_port = RENDEZVOUS_PORT + zlib.crc32(job.name.encode()) % PORTS
    if inventory.engine is EngineName.LOCAL:
        return Rendezvous(hosts[0].name, "127.0.0.1", job.port or own_port, "")
    if host_network:
        # Compose starts it beside a part of the job; Swarm can put it on a manager without GPUs.
        swarm = inventory.engine is EngineName.SWARM
        host = manager_of(inventory.hosts if swarm else tuple(hosts))
        constraint = f"node.labels.{HOST_LABEL} == {host.name}"
        return Rendezvous(host.name, host.address, job.port or own_port, constraint)
    host = manager_of(inventory.hosts)
    port = job.port or RENDEZVOUS_PORT
    if inventory.engine is EngineName.COMPOSE:
        return Rendezvous(hosts[0].name, "rendezvous", port, "")
    # The stack's name makes it one address: other jobs have a rendezvous on the same network.
    return Rendezvous(host.name, f"{stack_of(job.name)}_rendezvous", port, "node.role == manager")


def _variables(inventory: Inventory, job: Job) -> dict[str, str]:
    # On this machine alone nothing hangs unseen, and the old name makes newer torch complain.
    variables = {} if inventory.engine is EngineName.LOCAL else dict(FAULT_VARIABLES)
    if inventory.network.infiniband and inventory.engine is EngineName.SWARM:
        variables["NVIDIA_MOFED"] = "enabled"
    return variables | dict(inventory.network.nccl) | dict(job.nccl) | dict(job.environment)


__all__ = ["JobPlan", "Placement", "Plan", "Rendezvous", "Service", "make_plan"]
