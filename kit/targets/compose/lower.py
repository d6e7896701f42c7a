"""The plan as Compose projects, one on each host. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kit.errors import Fault, FaultsError
from kit.model import EngineName, Host, Secret
from kit.plan.storage import volume_name
from kit.plan.types import Placement, Volume
from kit.plan.work import Plan
from kit.targets.compose.addressing import listeners
from kit.targets.hosts import host_outputs, hosts_with_any_port
from kit.targets.lowered import Lowered, Output, monitoring_outputs, volumes_of
from kit.values import grouped
from kit.workload.data import VOLUME
from kit.workload.make import Parts
from kit.workload.monitoring import Monitoring, platform_parts
from kit.workload.names import DATA, project_of
from kit.workload.ports import OpenPort
from kit.workload.settings import Config, Environment, Net, Port, Symbol, Variable
from kit.workload.types import Kind, Part, Role, Workload

MONITORING = "monitoring"

Placed = tuple[Part, Placement | None]
"""A part on one host, with the GPUs that it has there."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a host's project, `name` in its file.

    `placement` is None if it reserves no GPU. `published` are its ports on the host, only at
    `address` unless that is "". `below`: its hash covers only what follows in the file.
    """

    name: str
    part: Part
    placement: Placement | None
    environment: Environment
    host_network: bool
    why_host_network: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    published: tuple[Port, ...] = ()
    address: str = ""
    below: bool = False


@dataclass(frozen=True, slots=True)
class Project:
    """The values of a host's file: its containers, and the volumes that they refer to.

    `workload` is None for services that jobs share.
    """

    name: str
    cluster: str
    host: Host
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...] = ()
    workload: Workload | None = None

    @property
    def placement(self) -> Placement | None:
        """The GPUs of the container that trains or answers."""
        return next((each.placement for each in self.containers if each.placement), None)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that its containers read, each once."""
        secrets = (secret for each in self.containers for secret in each.part.secrets)
        return tuple(dict.fromkeys(secrets))

    @property
    def keyed(self) -> bool:
        """Whether a container has the cluster's key."""
        return any(each.part.keyed for each in self.containers)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The files that its containers mount, each once."""
        configs = (config for each in self.containers for config in each.part.configs)
        return tuple(dict.fromkeys(configs))


def lower(plan: Plan, parts: Parts) -> Lowered:
    """Lower the plan to Compose projects.

    Raises:
        FaultsError: Ports conflict.
    """
    if faults := [
        Fault(each.name, ("proxy",), "the proxy needs Swarm", "leave it out, or use engine: swarm")
        for each in plan.servers
        if each.server.proxy
    ]:
        raise FaultsError(faults)
    if faults := parts.faults():
        raise FaultsError(faults)
    ports = parts.ports
    return Lowered(
        engine=EngineName.COMPOSE,
        plan=plan,
        workloads=parts.workloads,
        outputs=(*_data_outputs(plan, parts.data), *_outputs(plan, parts, ports)),
        images=plan.images,
        ports=ports,
    )


def _data_outputs(plan: Plan, parts: Sequence[Part]) -> Iterator[Output]:
    if plan.data is None:
        return
    volume = Volume(VOLUME, plan.data.volume, None, None, owned=True)
    here = _by_host(parts)
    for host in plan.data.agents:
        yield _shared(plan, host, DATA, here[host.name], [volume])


def _shared(
    plan: Plan, host: Host, name: str, here: Iterable[Placed], volumes: Iterable[Volume]
) -> Output:
    """Return the file of services that jobs share."""
    project = Project(
        name=project_of(plan.cluster, name),
        cluster=plan.cluster,
        host=host,
        containers=tuple(_container(plan, each, host, each[0].name) for each in here),
        volumes=tuple(volumes),
    )
    file = f"{name}.compose.yaml"
    return Output(
        path=f"hosts/{host.name}/{file}",
        template=f"hosts/{{host}}/{file}.j2",
        values={"project": project},
        configs=project.configs,
        stack=name,
        hashes_configs=True,
    )


def opened(workload: Workload) -> Mapping[str, Sequence[tuple[int, str]]]:
    """Return the ports that a workload opens on each host, each with the key of its file."""
    return grouped(
        (each.host.name, (each.port.number, each.port.written())) for each in listeners(workload)
    )


def _monitoring_outputs(plan: Plan, services: Monitoring) -> Iterator[Output]:
    yield from monitoring_outputs(services.scrapes, services.alertmanager, services.logs)
    here = _by_host(platform_parts(services))
    for host in plan.hosts:
        volumes = volumes_of(plan.cluster, (part for part, _ in here[host.name]))
        yield _shared(plan, host, MONITORING, here[host.name], volumes)


def _outputs(
    plan: Plan, parts: Parts, ports: Mapping[str, tuple[OpenPort, ...]]
) -> Iterator[Output]:
    for workload in parts.workloads:
        # The rendezvous stands above the training, whose hash covers only what follows.
        here = _by_host(sorted(workload.parts, key=lambda part: part.role is not Role.RENDEZVOUS))
        for host in plan.hosts:
            if host.name in here:
                yield _output(_project(plan, workload, host, here[host.name]))
    registry = parts.registry
    if registry is not None:
        name = volume_name(plan.cluster, Role.REGISTRY)
        volume = Volume(Role.REGISTRY, name, None, None, owned=True)
        yield _shared(plan, registry.hosts[0], Role.REGISTRY, [(registry, None)], [volume])
    if parts.monitoring is not None:
        yield from _monitoring_outputs(plan, parts.monitoring)
    insecure = plan.registry.address if registry is not None and plan.registry else ""
    any_port = hosts_with_any_port(parts.workloads)
    yield from host_outputs(plan, EngineName.COMPOSE, (), lambda _: None, insecure, ports, any_port)


def _output(project: Project) -> Output:
    """Return a project's file, which does not contain the GPUs of other hosts.

    A project that runs from the same file is left alone, so that a split changes only its hosts.
    """
    workload = project.workload
    assert workload
    kind = "train-{job}" if workload.kind is Kind.JOB else "serve-{server}"
    return Output(
        path=f"hosts/{project.host.name}/{workload.stack}.compose.yaml",
        template=f"hosts/{{host}}/{kind}.compose.yaml.j2",
        values={"project": project},
        sources=(workload.file,),
        configs=project.configs,
        stack=workload.stack,
        hashes_configs=True,
    )


def _by_host(parts: Iterable[Part]) -> dict[str, list[Placed]]:
    """Return the parts of each host that has one, in the order of the parts."""
    by_host: dict[str, list[Placed]] = {}
    for part in parts:
        placements = {placement.host.name: placement for placement in part.placements}
        for host in part.first_hosts:
            by_host.setdefault(host.name, []).append((part, placements.get(host.name)))
    return by_host


def _project(plan: Plan, workload: Workload, host: Host, here: Iterable[Placed]) -> Project:
    return Project(
        name=project_of(plan.cluster, workload.stack),
        cluster=plan.cluster,
        host=host,
        containers=tuple(_container(plan, each, host, each[0].role, workload) for each in here),
        volumes=workload.volumes,
        workload=workload,
    )


def _numeric(address: str) -> str:
    with suppress(ValueError):
        return str(ipaddress.ip_address(address))
    return ""


def _container(
    plan: Plan, placed: Placed, host: Host, name: str, workload: Workload | None = None
) -> Container:
    part, placement = placed
    # GPUs are reserved as devices, from which Docker sets the variable.
    written: Mapping[Symbol, str] = {Symbol.HOST: host.name}
    environment = tuple(
        Variable(
            each.name,
            written[each.value] if isinstance(each.value, Symbol) else each.value,
            each.why,
        )
        for each in part.environment
        if each.value is not Symbol.GPUS
    )
    shares = workload.host_network if workload else plan.ipv6 and part.network is not Net.ALONE
    return Container(
        name=name,
        part=part,
        placement=placement,
        environment=environment,
        host_network=shares or part.network is Net.HOST,
        why_host_network=_why_host_network(plan, part),
        # The coordinator has no GPU, and stays on a host that its owner reclaims.
        labels=workload.queue_labels if workload and part.role.works else part.labels,
        # On a network of its own, only the rendezvous' service name is used.
        published=() if part.role is Role.RENDEZVOUS else part.ports,
        address=_numeric(host.address) if part.own_address else "",
        below=part.role is Role.TRAIN,
    )


def _why_host_network(plan: Plan, part: Part) -> str:
    if part.network is Net.HOST:
        return ""
    if part.own_address or part.role is Role.RENDEZVOUS:
        return "It listens only on the host's address in the inventory."
    if plan.ipv6:
        return "Docker's own networks have no IPv6."
    return "NCCL and Gloo choose their own ports, so several hosts need the hosts' network."
