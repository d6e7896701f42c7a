"""The plan: a pure function of the inventory and the jobs that decides every number.

It knows no target. The targets decide how containers reach each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from kit.errors import Fault, FaultsError
from kit.jobs import Framework, Job
from kit.model import Inventory, Lock
from kit.plan import storage
from kit.plan.allocate import Allocation, allocate
from kit.plan.architectures import architecture_faults, images_of, mixed_notes
from kit.plan.data import data_faults, data_plan
from kit.plan.division import division
from kit.plan.exchange import exchange
from kit.plan.fitting import division_faults, session_faults
from kit.plan.gpus import precision
from kit.plan.images import images, pinned
from kit.plan.notes import job_notes, server_notes, spare_notes, uuid_notes
from kit.plan.notify import notify_faults
from kit.plan.queue import counted, nodes, queue_faults
from kit.plan.servers import able_hosts, handler_faults, server_faults, server_plan
from kit.plan.traffic import batch, traffic
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan, ServerPlan
from kit.servers import Server
from trainer.contract.job import Faults
from trainer.contract.keys import written


def make_plan(
    inventory: Inventory,
    jobs: Sequence[Job],
    lock: Lock | None = None,
    servers: Sequence[Server] = (),
    *,
    data_services: bool = True,
) -> Plan:
    """Decide hosts, GPUs, ranks, batch sizes and names.

    `lock` holds the digests of the pinned images; None if there is no lock. Without
    `data_services`, data sets are not checked here: the target itself rejects them.

    Raises:
        FaultsError: The jobs do not fit the inventory, or conflict with each other.
    """
    allocated = allocate(inventory, jobs, servers)
    if faults := [*_faults(inventory, jobs, servers, lock, allocated, data_services)]:
        raise FaultsError(faults)
    plans = [
        _job_plan(inventory, lock, job, placements, spares)
        for job, placements, spares in zip(jobs, allocated.training, allocated.spares, strict=True)
    ]
    by_name = {plan.name: plan for plan in plans}
    serving = [
        _server_plan(inventory, lock, server, placements, by_name.get(server.job))
        for server, placements in zip(servers, allocated.serving, strict=True)
    ]
    if faults := handler_faults(serving):
        raise FaultsError(faults)
    return Plan(
        file=inventory.file,
        cluster=inventory.cluster,
        network=inventory.network,
        registry=inventory.registry,
        heartbeat=inventory.heartbeat,
        hosts=inventory.hosts,
        jobs=tuple(plans),
        servers=tuple(serving),
        notes=(
            *uuid_notes(inventory),
            *job_notes(plans),
            *mixed_notes(plans),
            *spare_notes(inventory, plans),
            *server_notes(serving),
        ),
        images=images(inventory, jobs, servers),
        lock=lock,
        data=data_plan(inventory, jobs, lock),
        pool=allocated.pool,
        monitoring=inventory.monitoring,
        ipv6=any(":" in host.address for host in inventory.hosts),
        kubernetes=inventory.kubernetes,
    )


def _faults(
    inventory: Inventory,
    jobs: Sequence[Job],
    servers: Sequence[Server],
    lock: Lock | None,
    allocated: Allocation,
    data_services: bool,
) -> Iterator[Fault]:
    yield from allocated.faults
    yield from server_faults(inventory, servers, jobs)
    yield from data_faults(inventory, jobs) if data_services else ()
    yield from session_faults(jobs, allocated.training)
    yield from notify_faults(inventory, jobs)
    yield from queue_faults(inventory, jobs, allocated.training)
    names = [[(each.name, each.image) for each in work] for work in (jobs, servers)]
    yield from architecture_faults(lock, images_of(allocated, *names))
    yield from division_faults(jobs, allocated.training)


def _job_plan(
    inventory: Inventory,
    lock: Lock | None,
    job: Job,
    placements: tuple[Placement, ...],
    spares: tuple[Placement, ...],
) -> JobPlan:
    fewest = job.hosts.fewest if job.hosts.fewest is not None else len(placements)
    mounts = storage.mounts(inventory.cluster, job)
    infiniband = inventory.network.infiniband
    most = tuple(counted(job.queue, placements))
    moved = traffic(job, most)
    ranks = sum(len(placement.gpus) for placement in most)
    return JobPlan(
        job=job,
        placements=placements,
        spares=spares,
        nodes=nodes(job.queue, placements) if job.queue else (fewest, len(placements)),
        batch=batch(job, ranks // ((job.parallel.tensor or 1) * (job.parallel.pipeline or 1))),
        traffic=moved,
        exchange=None if job.parallel.used else exchange(job, most, moved),
        division=division(job, most),
        precision=precision(job, (*placements, *spares)),
        mounts=storage.mount_points(mounts),
        volumes=storage.volumes(mounts, job.mounts),
        shared_checkpoints=storage.shared_checkpoints(mounts),
        memlock=-1 if infiniband and job.limits.memlock is None else job.limits.memlock,
        stack_limit=job.limits.stack,
        inventory_hash=_inventory_version(inventory, (*placements, *spares)),
        job_hash=_version(job),
        image=pinned(job.image, lock),
        receivers=(*inventory.notify, *job.notify),
    )


def _server_plan(
    inventory: Inventory,
    lock: Lock | None,
    server: Server,
    placements: tuple[Placement, ...],
    job: JobPlan | None,
) -> ServerPlan:
    concerned = (*placements, *(job.containers if job else ()))
    code = job.job.code if job else ()
    hashes = (
        _inventory_version(inventory, concerned),
        # The code of its job's model is a part of a server.
        _hash([_version(server), code]) if code else _version(server),
    )
    image, able = pinned(server.image, lock), able_hosts(inventory.hosts, server.hosts)
    return server_plan(hashes, image, server, placements, able, job)


def _inventory_version(inventory: Inventory, placements: Sequence[Placement]) -> str:
    """Return the version of the inventory's part that concerns a workload's hosts."""
    shares = [
        (
            each.host.name,
            each.host.address,
            each.interface,
            each.whole,
            [gpu.id for gpu in each.gpus],
            *(["spare"] if each.spare else []),
        )
        for each in placements
    ]
    return _hash([inventory.cluster, inventory.engine, _fields(inventory.network), shares])


def _version(section: Job | Server) -> str:
    """Return the version of a file. A new key that the file does not use must not change it."""
    content = _fields(section)
    if section.user is None:
        del content["user"]
    content["hosts"] = _fields(section.hosts)
    if not section.hosts.gpus:
        del content["hosts"]["gpus"]
    content.pop("package", None)  # The name of its data set is its version.
    content |= _job_content(section) if isinstance(section, Job) else {}
    unused: dict[str, object] = {
        "own": None,
        "handler": None,
        "access_log": "lines",
        "proxy": None,
        "data": [],
        "code": (),
        "faults": Faults(),
        "framework": Framework.PYTORCH,
        "setup": (),
        "quiet": None,
        "max_duration": None,
        "idle": None,
        "session": None,
        "notify": (),
        "parallel": {},
        "queue": None,
    }
    return _hash(
        {
            name: value
            for name, value in content.items()
            if name not in unused or value != unused[name]
        }
    )


def _job_content(job: Job) -> dict[str, Any]:
    content: dict[str, Any] = {"data": [each.document() for each in job.data]}
    content["parallel"] = written(job.parallel)
    for name in ("train", "exchange", "checkpoint"):
        if part := getattr(job, name):
            content[name] = written(part, planned=False)
    return content


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, default=_fields).encode()).hexdigest()[:12]


def _fields(value: Any) -> dict[str, Any]:
    """Return `dataclasses.asdict` of one level: the full one takes a second for 4,000 hosts."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
