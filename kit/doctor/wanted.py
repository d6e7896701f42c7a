"""From the plan to what the doctor expects of the hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from kit.doctor.facts import DataNeed, Rendezvous, Use, Wanted, WantedHost
from kit.model import Host
from kit.plan.data import DataPlan, Sizes, size_of
from kit.plan.storage import DATA, DATA_SETS
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan
from kit.workload.monitoring import ENGINE_PORT
from kit.workload.ports import OpenPort
from kit.workload.types import Kind, Part, Workload

BYTES_PER_PARAMETER = 12
"""A parameter in fp32 and the two moments of Adam, which are most of a checkpoint."""


def wanted_of(
    plan: Plan,
    workloads: Collection[Workload],
    *,
    tree: str,
    managers: Collection[Host],
    labels: Mapping[str, tuple[tuple[str, str], ...]],
    overlay: str,
    ports: Mapping[str, tuple[OpenPort, ...]],
    sizes: Sizes,
) -> Wanted:
    """Return the expectations of the workloads, or of the hosts alone if there are none.

    `managers` are those of Swarm, if the cluster is one. `ports` are those that containers open on
    each host, `sizes` those of the stored data sets.
    """
    uses: dict[str, list[Use]] = {host.name: [] for host in plan.hosts}
    jobs = {job.name: job for job in plan.jobs}
    for workload in workloads:
        for part in workload.working:
            for placement in part.placements:
                use = _use(workload, part, placement, jobs.get(workload.name))
                uses[placement.host.name].append(use)
    rendezvous = tuple(_stores(workloads)) if not overlay else ()
    hosts = tuple(
        WantedHost(
            host=host,
            uses=tuple(uses[host.name]),
            labels=labels.get(host.name, ()),
            manager=host in managers,
            interface=host.interface or plan.network.interface,
            # The engine listens on its own port.
            ports=tuple(p for p in ports.get(host.name, ()) if p.port.number != ENGINE_PORT),
            data=_data(plan.data, plan.jobs, host, sizes) if plan.data else None,
        )
        for host in plan.hosts
    )
    swarm = bool(managers)
    return Wanted(plan.cluster, tree, swarm, plan.network.mtu, overlay, hosts, rendezvous)


def only(wanted: Wanted, names: Collection[str]) -> Wanted:
    """Return the expectations of some of the hosts."""
    hosts = tuple(host for host in wanted.hosts if host.name in names)
    return Wanted(
        wanted.cluster,
        wanted.tree,
        wanted.swarm,
        wanted.mtu,
        wanted.overlay,
        hosts,
        tuple(each for each in wanted.rendezvous if each.host in names),
    )


def _data(data: DataPlan, jobs: Iterable[JobPlan], host: Host, sizes: Sizes) -> DataNeed | None:
    """Return the data sets that a host keeps: those of its jobs, or of all on the storage host."""
    stores = host.name == data.storage.name
    sets = {
        each.title: size
        for job in jobs
        if stores or host.name in {one.name for one in job.hosts}
        for each in (job.job.data if stores else job.job.fetched)
        if (size := size_of(each, sizes)) is not None
    }
    if not sets:
        return None
    return DataNeed(data.volume, tuple(sets.items()), None if stores else data.cache)


def _use(workload: Workload, part: Part, placement: Placement, job: JobPlan | None) -> Use:
    volumes = {volume.key: volume for volume in workload.volumes}
    folders, mounts = [], []
    for mount in part.mounts:
        if mount.kind == "bind":
            folders.append(mount.source)
        volume = volumes.get(mount.source)
        if mount.target == DATA_SETS:  # The data agent fills it before the job starts.
            continue
        read = mount.target == DATA or mount.read_only
        if read and not (volume and volume.nfs_address):
            mounts.append((volume.name if volume else mount.source, mount.target))
    parameters = job.traffic.parameters if job else None
    downloads = bool(job and job.job.train and job.job.train.download)
    trains = job is not None and job.job.train is not None and not downloads
    document, reads = workload.document, not (workload.data or workload.code)
    return Use(
        workload=workload.name,
        stack=workload.stack,
        image=workload.image,
        gpus=tuple(gpu.id for gpu in placement.gpus),
        pinned=placement.pinned,
        shared_memory=part.limits.shared_memory if part.limits else 0,
        memlock=part.limits.memlock if part.limits else None,
        folders=tuple(folders),
        mounts=tuple(mounts),
        document=document.text if document and trains and reads else "",
        checkpoint_bytes=(parameters or 0) * BYTES_PER_PARAMETER,
    )


def _stores(workloads: Collection[Workload]) -> Iterator[Rendezvous]:
    for workload in workloads:
        if workload.kind is Kind.JOB and workload.rendezvous:
            host = workload.rendezvous.host
            yield Rendezvous(workload.name, host.name, host.address, workload.rendezvous.port)
