"""The plan: a pure function of the inventory and the jobs that decides every number."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from kit.errors import INVENTORY, Fault, FaultsError, Loc
from kit.model import EngineName, Host, Inventory, Job, Lock
from kit.plan import storage
from kit.plan.allocate import allocate
from kit.plan.exchange import exchange
from kit.plan.gpus import precision
from kit.plan.groups import HOST_LABEL, services
from kit.plan.images import images, network_image, pinned, served_registry, unlocked
from kit.plan.notes import lock_notes, notes
from kit.plan.traffic import batch, traffic
from kit.plan.types import JobPlan, Placement, Plan, Rendezvous, Service, manager_of, stack_of
from kit.values import count

RENDEZVOUS_PORT = 29400
"""torchrun's own default for the c10d rendezvous."""
PORTS = 1000
"""On a host's network every job needs a port of its own: one of so many from RENDEZVOUS_PORT on."""
LONGEST_SERVICE = 63
"""Swarm refuses longer service names, the stack's name included."""
LONGEST_CONFIG = 64
"""Swarm refuses longer names of configs and secrets."""
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


def make_plan(inventory: Inventory, jobs: Sequence[Job], lock: Lock | None = None) -> Plan:
    """Decide hosts, GPUs, ranks, batch sizes, ports and names.

    `lock` holds the digests that the images are pinned to; None where there is no lock.

    Raises:
        FaultsError: The jobs do not fit the inventory, or each other.
    """
    allocated, faults = allocate(inventory, jobs)
    if faults:
        raise FaultsError(faults)
    inventory_hash = _version(inventory)
    plans = [
        _job_plan(inventory, inventory_hash, lock, job, placements)
        for job, placements in zip(jobs, allocated, strict=True)
    ]
    names = images(inventory, jobs)
    missing = unlocked(names, lock)
    faults = _port_faults(inventory, plans) + _name_faults(inventory, plans)
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
        notes=(*notes(inventory, plans), *lock_notes(missing)),
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
        services=services(job.name, placements),
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


def _version(section: Inventory | Job) -> str:
    return hashlib.sha256(json.dumps(asdict(section)).encode()).hexdigest()[:12]


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


def _port_faults(inventory: Inventory, plans: list[JobPlan]) -> list[Fault]:
    """Refuse what would listen on the same port of the same host."""
    faults = []
    seen: dict[tuple[str, int], tuple[str, Loc, str]] = {}
    served = served_registry(inventory, None)
    if served is not None:
        address = next(host.address for host in inventory.hosts if host.name == served.host)
        seen[address, served.port] = (INVENTORY, ("registry", "address"), "the registry's")
    for plan in plans:
        for section, address, host, port in _listeners(inventory.engine, plan):
            own = (plan.name, (section, "port"), f"job {plan.name}'s")
            first = seen.setdefault((address, port), own)
            if first == own:
                continue
            source, other, whose = first
            what = f"port {port} of {host} is already {whose} ({{line}})"
            fix = f"write `{section}: {{port: {port % 65535 + 1}}}`"
            faults.append(Fault(plan.name, (section, "port"), what, fix, other, source))
            break  # a thousand hosts are one mistake
    return faults


def _listeners(engine: EngineName, plan: JobPlan) -> Iterator[tuple[str, str, str, int]]:
    """Return section, address, host and port of what a job opens on its hosts' own network."""
    place, metrics = plan.rendezvous, plan.job.metrics_port
    local = place.address == "127.0.0.1"
    on_hosts = plan.host_network or local
    if on_hosts:
        yield "rendezvous", place.address, place.host, place.port
    # Of a network of its own, Compose publishes it.
    if metrics is None or not (on_hosts or engine is EngineName.COMPOSE):
        return
    for host in (placement.host for placement in plan.placements):
        yield "metrics", "127.0.0.1" if local else host.address, host.name, metrics


def _name_faults(inventory: Inventory, plans: list[JobPlan]) -> list[Fault]:
    if inventory.engine is not EngineName.SWARM:
        return []
    faults = []
    for plan in plans:
        services = [f"{plan.stack}_{service.name}" for service in plan.services]
        longest = max(services, key=len)
        config = f"{plan.stack}-launcher-{'0' * 8}"
        secrets = [f"{plan.stack}-{each.name}-{'0' * 8}" for each in plan.job.secrets]
        for kind, name, most in (
            ("service", longest, LONGEST_SERVICE),
            ("config", config, LONGEST_CONFIG),
            ("secret", max(secrets, key=len, default=""), LONGEST_CONFIG),
        ):
            if len(name) > most:
                what = f"{name} is too long a name for a Swarm {kind} (at most {most})"
                over = count(len(name) - most, "letter")
                whose = {
                    "service": "the job's or the host's name",
                    "config": "the job's name",
                    "secret": "the job's or the secret's name",
                }[kind]
                faults.append(Fault(plan.name, (), what, f"shorten {whose} by {over}"))
    most = LONGEST_SERVICE - len("-platform_network")
    if inventory.network.driver == "overlay" and len(inventory.cluster) > most:
        what = f"{inventory.cluster} is too long: <cluster>-platform_network is a Swarm service"
        fix = f"write at most {most} letters"
        faults.append(Fault(INVENTORY, ("cluster",), what, fix))
    return faults


__all__ = ["JobPlan", "Placement", "Plan", "Rendezvous", "Service", "make_plan"]
