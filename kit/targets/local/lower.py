"""The plan as processes of this machine without Docker. Pure.

A container has its own GPUs, folders and network; a process gets them through variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kit.errors import Fault, FaultsError
from kit.model import EngineName
from kit.plan.data import DataPlan
from kit.plan.storage import CHECKPOINTS, DATA
from kit.plan.types import MountPoint, Placement
from kit.plan.work import Plan
from kit.targets.local.addressing import HERE, LocalAddressing, metrics_ports
from kit.targets.lowered import Lowered, monitoring_outputs
from kit.workload.data import CACHE, SOCKET, STORE, data_parts
from kit.workload.make import Parts
from kit.workload.monitoring import Scrape, Target
from kit.workload.settings import Symbol
from kit.workload.types import Kind, Part, Workload
from kit.workload.variables import SECRETS
from trainer.contract.bearer import KEY

DATA_SETS = ".datasets"
"""The folder of the data sets. No job has such a name, because a DNS label has no dot."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process to start with its own variables; it inherits the rest from the supervisor.

    `host` is the inventory's name, `part` the role, `workers` the number of its processes.
    """

    host: str
    part: str
    workers: int
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    folder: str
    log: str


@dataclass(frozen=True, slots=True)
class Places:
    """Paths on this machine.

    `folders` contains a folder for each workload, `tree` is the rendered tree, `here` the working
    directory of the deploy.
    """

    python: str
    launcher: PurePosixPath
    tree: PurePosixPath
    folders: PurePosixPath
    data: PurePosixPath
    here: PurePosixPath

    @property
    def datasets(self) -> PurePosixPath:
        """The folder of the data sets of `kit data`."""
        return self.folders / DATA_SETS

    def of(self, workload: Workload) -> PurePosixPath:
        """Return the folder of a workload."""
        return self.folders / workload.name


def lower(plan: Plan, parts: Parts) -> Lowered:
    """Lower the plan to processes of this machine.

    Raises:
        FaultsError: Ports conflict.
    """
    if faults := [*parts.faults(), *_sessions(plan)]:
        raise FaultsError(faults)
    # Jobs run on this machine's GPUs or on the CPU, without the queue.
    workloads = tuple(replace(each, precision=None, queue=None) for each in parts.workloads)
    outputs = tuple(monitoring_outputs(tuple(_scrapes(workloads)), "")) if plan.monitoring else ()
    return Lowered(EngineName.LOCAL, plan, workloads, outputs, on_hosts=False)


def _sessions(plan: Plan) -> Iterator[Fault]:
    for job in plan.jobs:
        if job.job.session:
            what = "a session is a container, and engine local has none"
            fix = "set `engine: compose` or `swarm`, or work in a shell of this machine"
            yield Fault(job.name, ("session",), what, fix)


def _scrapes(workloads: Sequence[Workload]) -> Iterator[Scrape]:
    """Yield the scrape jobs for a Prometheus on this machine; kit starts none here."""
    ports = (each for work in workloads for each in metrics_ports(work).items())
    targets = [Target(f"{HERE}:{port}", (("host", host),)) for host, port in ports]
    if targets:
        yield Scrape("train", tuple(targets), own_labels=True)
    servers = [
        Target(f"{HERE}:{each.working[0].ports[0].number}", (("server", each.name),))
        for each in workloads
        if each.kind is Kind.SERVER and each.parts and each.document
    ]
    if servers:
        yield Scrape("serve", tuple(servers))


def processes(
    workload: Workload, places: Places, devices: Mapping[str, str], cores: int
) -> tuple[Process, ...]:
    """Return the coordinator of a job, and one agent for each host of the plan.

    `devices` is CUDA_VISIBLE_DEVICES for each host. All workers share `cores`.
    """
    threads = str(max(1, cores // workload.processes))
    agents = {
        placement.host.name: _agent(workload, part, placement, places, threads, devices)
        for part in workload.working
        for placement in part.placements
    }
    helpers = [
        _rendezvous(workload, part, places) for part in workload.parts if not part.role.works
    ]
    return (*helpers, *(agents[placement.host.name] for placement in workload.placements))


def _rendezvous(workload: Workload, part: Part, places: Places) -> Process:
    variables = _variables(part, part.hosts[0].name, (), places)
    return Process(
        host=part.hosts[0].name,
        part=part.role,
        workers=0,
        argv=_command(part, places),
        variables=(*variables.items(), ("CUDA_VISIBLE_DEVICES", "")),
        folder=str(places.of(workload)),
        log=str(places.of(workload) / f"{part.role}.log"),
    )


def _agent(
    workload: Workload,
    part: Part,
    placement: Placement,
    places: Places,
    threads: str,
    devices: Mapping[str, str],
) -> Process:
    host = placement.host.name
    variables = {
        "OMP_NUM_THREADS": threads,
        **_variables(part, host, [gpu.id for gpu in placement.gpus], places),
        "PYTHONUNBUFFERED": "1",
        "KIT_ONE_RUN": "1",
        "KIT_DATA": str(on_this_machine(DATA, workload, host, places)),
        "KIT_CHECKPOINTS": str(on_this_machine(CHECKPOINTS, workload, host, places)),
        "CUDA_VISIBLE_DEVICES": devices[host],
    }
    if workload.data:
        variables["KIT_DATA_SOCKET"] = str(places.datasets / SOCKET)
    if workload.package:
        # Each version has a folder of its own: what a script has written stays.
        own = places.of(workload) / host / "workspace" / workload.package.version
        variables["KIT_WORKSPACE"] = str(own)
    if port := metrics_ports(workload).get(host):
        variables["KIT_METRICS_PORT"] = str(port)
    folder = places.here
    if part.working_dir is not None:
        folder = on_this_machine(part.working_dir, workload, host, places)
    return Process(
        host=host,
        part=part.role,
        workers=placement.processes,
        argv=_command(part, places),
        variables=tuple(variables.items()),
        folder=str(folder),
        log=str(places.of(workload) / host / "log"),
    )


def data_processes(data: DataPlan, places: Places) -> tuple[Process, ...]:
    """Return the processes of the data services."""
    return tuple(
        Process(
            host=part.hosts[0].name,
            part=part.role,
            workers=0,
            argv=tuple(
                str(places.datasets) if word in {STORE, CACHE} else word
                for word in (*_command(part, places), "--address", HERE)
            ),
            variables=(("CUDA_VISIBLE_DEVICES", ""), ("KIT_KEY", KEY)),
            folder=str(places.here),
            log=str(places.datasets / "services" / f"{part.role}.log"),
        )
        for part in data_parts("", data, LocalAddressing().data(data))
    )


def server_process(server: Workload, job: Workload | None, places: Places, devices: str) -> Process:
    """Return the process that answers for all hosts of a server.

    `job` is the one whose checkpoints the built-in server reads, which listens on loopback only.
    `devices` is CUDA_VISIBLE_DEVICES.
    """
    if job is None:
        return _own_server(server, places, devices)
    part, host = server.working[0], server.placements[0].host.name
    gpus = [gpu.id for placement in server.placements for gpu in placement.gpus]
    # All hosts of a job have its checkpoints, here in one folder for each host.
    home = job.placements[0].host.name
    variables = {
        **_variables(part, host, gpus, places),
        "PYTHONUNBUFFERED": "1",
        "KIT_ADDRESS": HERE,
        "KIT_REPLICAS": str(server.processes),
        "KIT_CHECKPOINTS": str(on_this_machine(CHECKPOINTS, job, home, places)),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    return Process(
        host=host,
        part=part.role,
        workers=server.processes,
        argv=_command(part, places),
        variables=tuple(variables.items()),
        folder=str(places.here),
        log=str(places.of(server) / host / "log"),
    )


def _own_server(server: Workload, places: Places, devices: str) -> Process:
    """Return the process of a custom server; paths below its mounts are this machine's."""
    part, host = server.working[0], server.placements[0].host.name
    gpus = [gpu.id for placement in server.placements for gpu in placement.gpus]

    def here(word: str) -> str:
        return str(on_this_machine(word, server, host, places)) if word.startswith("/") else word

    variables = {
        **_variables(part, host, gpus, places),
        "KIT_GPUS": str(len(gpus)),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    return Process(
        host=host,
        part=part.role,
        workers=server.processes,
        argv=tuple(map(here, part.launch)),
        variables=tuple(variables.items()),
        folder=here(part.working_dir) if part.working_dir else str(places.here),
        log=str(places.of(server) / host / "log"),
    )


def _command(part: Part, places: Places) -> tuple[str, ...]:
    """Return the command: this Python, and this machine's launcher."""
    _, script, *rest = part.launch
    own = str(places.launcher) if PurePosixPath(script).name == places.launcher.name else script
    return (places.python, own, *rest, *part.arguments)


def _variables(part: Part, host: str, gpus: Sequence[str], places: Places) -> dict[str, str]:
    """Return a part's environment with the paths and GPUs of this machine.

    The values of secrets are variables here already: there is no /run/secrets to read.
    """
    here = {Symbol.HOST: host, Symbol.GPUS: ",".join(gpus)}
    paths = {config.target: str(places.tree / config.file) for config in part.configs}
    return {
        each.name: here[each.value]
        if isinstance(each.value, Symbol)
        else paths.get(each.value, str(each.value))
        for each in part.environment
        if each.name != SECRETS
    }


def on_this_machine(path: str, job: Workload, host: str, places: Places) -> PurePosixPath:
    """Return the path of a container's folder on this machine: a bind mount's or a volume's.

    All hosts share the data volume and NFS exports, because they are one machine.
    """
    mounts = job.working[0].mounts
    for mount in sorted(mounts, key=lambda mount: len(mount.target), reverse=True):
        if PurePosixPath(path).is_relative_to(mount.target):
            return _source(mount, job, host, places) / PurePosixPath(path).relative_to(mount.target)
    return PurePosixPath(path)


def _source(mount: MountPoint, job: Workload, host: str, places: Places) -> PurePosixPath:
    if mount.kind == "bind":
        return PurePosixPath(mount.source)
    if mount.target == DATA:
        return places.data
    shared = {volume.key for volume in job.volumes if volume.nfs_address}
    owner = "shared" if mount.source in shared else host
    # The folder's path contains the cluster already.
    name = re.sub("^kit-[^_]+_", "kit-", mount.source)
    return places.of(job) / owner / name
