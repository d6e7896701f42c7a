"""The plan as Compose projects, one on each host. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kit.errors import Fault, FaultsError
from kit.model import EngineName, Host, Secret
from kit.plan.storage import volume_name
from kit.plan.types import Placement, Volume
from kit.plan.work import JobPlan, Plan, ServerPlan, manager_of
from kit.targets.hosts import host_outputs, hosts_with_any_port
from kit.targets.lowered import Lowered, Output
from kit.targets.monitoring import monitoring_outputs
from kit.values import endpoint
from kit.workload.data import VOLUME, Addresses, data_parts, some_peers
from kit.workload.monitoring import (
    PROMETHEUS_PORT,
    Monitoring,
    Scrape,
    at,
    engine_services,
    metrics_port,
    monitoring,
    platform_parts,
    server_scrapes,
)
from kit.workload.names import DATA, project_of
from kit.workload.ports import (
    Listener,
    OpenPort,
    low_port_faults,
    open_ports,
    port_faults,
    services,
)
from kit.workload.registry import registry_part
from kit.workload.serving import endpoints, serving, source_hosts
from kit.workload.training import RENDEZVOUS_PORT, own_port, training
from kit.workload.types import (
    Config,
    Environment,
    Kind,
    Net,
    Part,
    Port,
    Rendezvous,
    Role,
    Symbol,
    Variable,
    Workload,
)

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
        found = (secret for each in self.containers for secret in each.part.secrets)
        return tuple(dict.fromkeys(found))

    @property
    def keyed(self) -> bool:
        """Whether a container has the cluster's key."""
        return any(each.part.keyed for each in self.containers)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The files that its containers mount, each once."""
        found = (config for each in self.containers for config in each.part.configs)
        return tuple(dict.fromkeys(found))


def lower(plan: Plan) -> Lowered:
    """Lower the plan to Compose projects.

    With `plan.ipv6`, the containers use the network of their host. A bridge of Docker has no IPv6
    unless its network, and before Docker 27 also the daemon, is told so. Then Docker makes the host
    forward IPv6, and the kernel drops the routes and addresses that routers announce to the host.

    Raises:
        FaultsError: Ports conflict.
    """
    if faults := [
        Fault(each.name, ("proxy",), "the proxy needs Swarm", "leave it out, or use engine: swarm")
        for each in plan.servers
        if each.server.proxy
    ]:
        raise FaultsError(faults)
    jobs = [_job(plan, job) for job in plan.jobs]
    servers = [_server(plan, server) for server in plan.servers]
    workloads = (*jobs, *servers)
    registry = registry_part(plan)
    listeners = [each for workload in workloads for each in _listeners(workload)]
    data, made = _data(plan), _monitoring(plan, workloads)
    shared = (*([registry] if registry else []), *platform_parts(made), *data)
    platform = [*services(shared), *engine_services(plan)]
    if faults := [*port_faults(platform, listeners), *low_port_faults(workloads)]:
        raise FaultsError(faults)
    ports = open_ports(platform, listeners)
    return Lowered(
        engine=EngineName.COMPOSE,
        plan=plan,
        workloads=workloads,
        outputs=(*_data_outputs(plan, data), *_outputs(plan, registry, workloads, made, ports)),
        images=plan.images,
        ports=ports,
    )


def _data(plan: Plan) -> tuple[Part, ...]:
    """Return the data services, which find each other at the hosts' published ports."""
    data = plan.data
    if data is None:
        return ()
    peers = [endpoint(host.address, data.peer_port) for host in data.agents]
    addresses = Addresses(_data_server(plan), some_peers(data, peers), own=plan.ipv6)
    return data_parts(plan.cluster, data, addresses)


def _data_server(plan: Plan) -> str:
    """Return the URL of the data server, or "" without one."""
    return f"http://{endpoint(plan.data.storage.address, plan.data.port)}" if plan.data else ""


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


def _job(plan: Plan, job: JobPlan) -> Workload:
    network = plan.network
    # NCCL and Gloo choose their own ports, so several hosts need the hosts' network.
    several = len(job.containers) > 1
    host_network = several or network.driver == "host" or network.infiniband or plan.ipv6
    if host_network:
        host = manager_of(job.hosts)
        rendezvous = Rendezvous(host, host.address, own_port(job))
    else:
        rendezvous = Rendezvous(job.hosts[0], Role.RENDEZVOUS, job.job.port or RENDEZVOUS_PORT)
    server = _data_server(plan)
    return training(plan, job, rendezvous, host_network=host_network, data_server=server)


def _server(plan: Plan, server: ServerPlan) -> Workload:
    offered, port = endpoints(server), server.server.transfer_port
    # Compose never moves them to other hosts.
    offering = [host for part in offered for host in part.first_hosts]
    hosts = source_hosts(plan, server, offering) if offered else ()
    sources = [f"http://{endpoint(host.address, port)}" for host in hosts]
    # Servers of the user's own fetch nothing of kit's, and often listen by IPv4 alone, to which
    # Docker's proxy passes what arrives by IPv6.
    host_network = plan.ipv6 and server.server.own is None
    if host_network:
        offered = tuple(_addressed(part) for part in offered)
    return serving(plan, server, offered, sources, host_network=host_network)


def _addressed(part: Part) -> Part:
    """Let checkpoint endpoints listen only on the addresses that servers use."""
    own = Variable("KIT_ADDRESS", ",".join(host.address for host in part.first_hosts))
    return replace(part, environment=(*part.environment, own))


def _listeners(workload: Workload) -> Iterator[Listener]:
    for part in workload.parts:
        # On a network of its own, only the rendezvous' service name is used.
        inside = part.role is Role.RENDEZVOUS and not workload.host_network
        for port in () if inside else part.ports:
            for host in part.first_hosts:
                yield Listener(workload, port, host, host.address)


def opened(workload: Workload, host: str) -> Iterator[tuple[int, str]]:
    """Yield the ports that a workload opens on a host, and the key that sets each in its file."""
    for each in _listeners(workload):
        if each.host.name == host:
            yield each.port.number, each.port.written()


def _monitoring(plan: Plan, workloads: Sequence[Workload]) -> Monitoring | None:
    targets = tuple(
        at(host, port)
        for each in workloads
        if (port := metrics_port(each))
        for part in each.working
        for host in part.first_hosts
    )
    scrapes = [Scrape("train", targets, own_labels=True)] if targets else []
    host_network = plan.ipv6
    name = "127.0.0.1" if host_network else Role.PROMETHEUS
    where = f"http://{name}:{PROMETHEUS_PORT}"
    found = [*scrapes, *server_scrapes(workloads)]
    return monitoring(plan, found, where, host_network=host_network)


def _monitoring_outputs(plan: Plan, made: Monitoring) -> Iterator[Output]:
    yield from monitoring_outputs(made.scrapes, made.alertmanager)
    volumes = [
        Volume(name, volume_name(plan.cluster, name), None, None, owned=True)
        for name in (Role.PROMETHEUS, Role.GRAFANA)
    ]
    here = _by_host(platform_parts(made))
    for host in plan.hosts:
        added = volumes if host is made.host else ()
        yield _shared(plan, host, MONITORING, here[host.name], added)


def _outputs(
    plan: Plan,
    registry: Part | None,
    workloads: Sequence[Workload],
    made: Monitoring | None,
    ports: Mapping[str, tuple[OpenPort, ...]],
) -> Iterator[Output]:
    for workload in workloads:
        # The rendezvous stands above the training, whose hash covers only what follows.
        here = _by_host(sorted(workload.parts, key=lambda part: part.role is not Role.RENDEZVOUS))
        for host in plan.hosts:
            if host.name in here:
                yield _output(_project(plan, workload, host, here[host.name]))
    if registry is not None:
        name = volume_name(plan.cluster, Role.REGISTRY)
        volume = Volume(Role.REGISTRY, name, None, None, owned=True)
        yield _shared(plan, registry.hosts[0], Role.REGISTRY, [(registry, None)], [volume])
    if made is not None:
        yield from _monitoring_outputs(plan, made)
    insecure = plan.registry.address if registry is not None and plan.registry else ""
    any_port = hosts_with_any_port(workloads)
    yield from host_outputs(plan, EngineName.COMPOSE, (), lambda _: None, insecure, ports, any_port)


def _output(project: Project) -> Output:
    """Return a project's file, which says nothing of the GPUs of other hosts.

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
    """Return what runs on each host that has a part, in the order of the parts."""
    found: dict[str, list[Placed]] = {}
    for part in parts:
        placements = {placement.host.name: placement for placement in part.placements}
        for host in part.first_hosts:
            found.setdefault(host.name, []).append((part, placements.get(host.name)))
    return found


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
