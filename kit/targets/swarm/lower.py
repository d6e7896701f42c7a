"""The plan as Swarm stacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from kit.errors import INVENTORY, Fault, FaultsError
from kit.model import EngineName, Host, Secret
from kit.plan.images import pinned
from kit.plan.storage import volume_name
from kit.plan.types import MountPoint, Volume
from kit.plan.work import JobPlan, Plan, ServerPlan, manager_of, managers_of
from kit.targets.hosts import host_outputs, hosts_with_any_port
from kit.targets.lowered import Lowered, Output
from kit.targets.monitoring import monitoring_outputs
from kit.targets.swarm.labels import HOST_LABEL, constraint, data_constraint, node_labels
from kit.values import count, endpoint
from kit.workload.data import Addresses, data_parts, some_peers
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
from kit.workload.names import stack_of_job
from kit.workload.ports import Listener, OpenPort, open_ports, port_faults, services
from kit.workload.registry import registry_part
from kit.workload.serving import MOST_SOURCES, endpoints, serving, source_hosts
from kit.workload.training import FAULT_VARIABLES, METRICS_PORT, RENDEZVOUS_PORT, own_port, training
from kit.workload.types import (
    Config,
    Environment,
    Part,
    Rendezvous,
    Role,
    Symbol,
    Variable,
    Word,
    Workload,
)
from trainer.contract.bearer import KEY

NETWORK_IMAGE = "hello-world:linux"
"""The image of the service that holds the overlay network. It has no task, so no host pulls it."""
PLATFORM = "platform.stack.yaml"
MONITORING = "monitoring.stack.yaml"
LONGEST_SERVICE = 63
"""Swarm rejects longer service names, including the stack's name."""
LONGEST_CONFIG = 64
"""Swarm rejects longer names of configs and secrets."""
HOST = "{{.Node.Hostname}}"
"""A placeholder that Swarm replaces for each task."""
EMPTY = '{{""}}'
"""A placeholder for an empty value: for a plain empty value, `docker stack deploy` would use the
variable of that name from its own environment, for example a proxy with a password."""


@dataclass(frozen=True, slots=True)
class Service:
    """A Swarm service: a part, its constraint, and the variables that other services lack."""

    part: Part
    constraint: str
    environment: Environment


@dataclass(frozen=True, slots=True)
class Stack:
    """The values of a stack's file.

    `key` is the secret with the cluster's key.
    `environment` is common to all services that train or answer. `network` is their external
    network, `alias` the common name of all checkpoint endpoints on it, `metrics_alias` of all
    containers that Prometheus finds by it, or "". `after_platform`: the
    platform must be deployed before.
    """

    workload: Workload
    environment: Environment
    services: tuple[Service, ...]
    helpers: tuple[Service, ...]
    proxies: tuple[Service, ...]
    network: str
    alias: str
    after_platform: bool
    metrics_alias: str
    key: str


@dataclass(frozen=True, slots=True)
class Platform:
    """The values of the platform's file; `network_image` is None without an overlay.

    `data` are the data services; the server is reached on its host's `data_port` too.
    """

    cluster: str
    network: str
    network_image: str | None
    mtu: int
    encrypted: bool
    subnet: str
    registry: Part | None
    registry_address: str
    registry_volume: str
    data: tuple[Service, ...]
    data_port: int
    data_volume: str
    key: str


def lower(plan: Plan) -> Lowered:
    """Lower the plan to Swarm stacks.

    Raises:
        FaultsError: Ports or names conflict, or Swarm rejects a name.
    """
    host_network = plan.network.driver == "host"
    jobs = [_job(plan, job, host_network=host_network) for job in plan.jobs]
    servers = [_server(plan, server, host_network=host_network) for server in plan.servers]
    workloads = (*jobs, *servers)
    listeners = [each for workload in workloads for each in _listeners(workload)]
    platform, made = _platform(plan), _monitoring(plan, workloads)
    data = [each.part for each in platform.data]
    published = data if host_network else [p for p in data if p.role is Role.DATA_SERVER]
    registry = registry_part(plan)
    shared = (*([registry] if registry else []), *platform_parts(made), *published)
    opened = [*services(shared), *engine_services(plan)]
    faults = [
        *port_faults(opened, listeners),
        *_name_faults(plan, workloads),
    ]
    if faults:
        raise FaultsError(faults)
    ports = open_ports(opened, listeners)
    return Lowered(
        engine=EngineName.SWARM,
        plan=plan,
        workloads=workloads,
        outputs=tuple(_outputs(plan, platform, workloads, made, ports)),
        images=plan.images,
        optional_images=(NETWORK_IMAGE,) if platform.network_image else (),
        own_notes=(*_manager_notes(plan), *_metrics_notes(plan, workloads)),
        ports=ports,
    )


def key_name(cluster: str) -> str:
    """Return the name in Swarm of the secret with the cluster's key."""
    return f"{cluster}-{KEY}"


def network_name(plan: Plan) -> str:
    """Return the name of the overlay network of all workloads."""
    return f"{plan.cluster}-training"


def _data(plan: Plan) -> tuple[Service, ...]:
    """Return the data services; on the overlay they find each other by the names of services."""
    data = plan.data
    if data is None:
        return ()
    if plan.network.driver == "host":
        peers = [endpoint(host.address, data.peer_port) for host in data.agents]
        addresses = Addresses(_data_server(plan), some_peers(data, peers))
    else:
        # The stack's name makes them unique: other stacks are on the same network.
        stack = f"{plan.cluster}-platform"
        names = ["data-storage", *([Role.DATA_AGENT] if len(data.agents) > 1 else [])]
        peers = [f"tasks.{stack}_{name}:{data.peer_port}" for name in names]
        addresses = Addresses(_data_server(plan), tuple(peers))
    return tuple(
        Service(
            part,
            data_constraint("agent" if part.name == Role.DATA_AGENT else "storage"),
            _written(part, part.environment),
        )
        for part in data_parts(data, addresses)
    )


def _data_server(plan: Plan) -> str:
    """Return the URL of the data server, or "" without one."""
    if plan.data is None:
        return ""
    if plan.network.driver == "host":
        return f"http://{endpoint(plan.data.storage.address, plan.data.port)}"
    return f"http://{plan.cluster}-platform_{Role.DATA_SERVER}:{plan.data.port}"


def _job(plan: Plan, job: JobPlan, *, host_network: bool) -> Workload:
    # Managers stay, while training hosts may leave and return.
    host = manager_of(plan.hosts)
    if host_network:
        rendezvous = Rendezvous(host, host.address, own_port(job))
    else:
        # The stack's name makes it unique: other jobs have a rendezvous on the same network.
        name = f"{stack_of_job(job.name)}_{Role.RENDEZVOUS}"
        rendezvous = Rendezvous(host, name, job.job.port or RENDEZVOUS_PORT)
    # Swarm cannot add devices; this variable makes the nvidia runtime add those of InfiniBand.
    infiniband = {"NVIDIA_MOFED": "enabled"} if plan.network.infiniband else {}
    defaults = FAULT_VARIABLES | infiniband
    made = training(
        plan,
        job,
        rendezvous,
        host_network=host_network,
        own_addresses=not host_network,
        defaults=defaults,
        data_server=_data_server(plan),
    )
    return _readable(made)


def _server(plan: Plan, server: ServerPlan, *, host_network: bool) -> Workload:
    offered, port = endpoints(server), server.server.transfer_port
    # Swarm may move them among all hosts with checkpoints.
    offering = [host for part in offered for host in part.hosts]
    names = [host.address for host in source_hosts(plan, offering)] if host_network else []
    sources = [f"http://{name}:{port}" for name in names or [_alias(server.name)]]
    addressed = [_addressed(part, _alias(server.name), host_network) for part in offered]
    made = serving(plan, server, addressed, sources if offered else (), host_network=host_network)
    return _readable(made)


def _addressed(part: Part, alias: str, host_network: bool) -> Part:
    """Let checkpoint endpoints listen only on the addresses that servers use."""
    names = [host.address for host in part.hosts] if host_network else [alias]
    if len(names) > MOST_SOURCES:
        return part
    variable = Variable("KIT_ADDRESS", ",".join(names))
    return replace(part, environment=(*part.environment, variable))


def _readable(workload: Workload) -> Workload:
    """Escape Swarm's placeholders in the paths of mounts and of NFS exports."""

    def mount(point: MountPoint) -> MountPoint:
        source, target = untemplated(point.source), untemplated(point.target)
        return replace(point, source=source, target=target)

    def volume(one: Volume) -> Volume:
        return replace(one, nfs_path=untemplated(one.nfs_path)) if one.nfs_path else one

    # The parts of a workload share their mounts, mostly.
    readable = {mounts: tuple(map(mount, mounts)) for mounts in {p.mounts for p in workload.parts}}
    parts = (
        part
        if readable[part.mounts] == part.mounts
        else replace(part, mounts=readable[part.mounts])
        for part in workload.parts
    )
    volumes = tuple(map(volume, workload.volumes))
    return replace(workload, parts=tuple(parts), volumes=volumes)


def _alias(server: str) -> str:
    return f"{server}-checkpoints"


def _listeners(workload: Workload) -> Iterator[Listener]:
    for part in workload.parts:
        for port in part.ports:
            if workload.host_network or port.public:
                for host in part.hosts:
                    yield Listener(workload, port, host, host.address)


def _name_faults(plan: Plan, workloads: Sequence[Workload]) -> Iterator[Fault]:
    """Reject names that Swarm would reject at the deploy."""
    for workload in workloads:
        for kind, name, most, whose in _names(workload):
            if len(name) > most:
                what = f"{name} is too long a name for a Swarm {kind} (at most {most})"
                over = count(len(name) - most, "letter")
                yield Fault(workload.name, (), what, f"shorten {whose} by {over}")
    service = "-platform_network" if plan.data is None else "-platform_data-storage"
    most = LONGEST_SERVICE - len(service)
    there = plan.network.driver == "overlay" or plan.data is not None
    if there and len(plan.cluster) > most:
        what = f"{plan.cluster} is too long: <cluster>{service} is a Swarm service"
        yield Fault(INVENTORY, ("cluster",), what, f"write at most {most} letters")
    most = LONGEST_CONFIG - len("-monitoring-board-cluster-") - 8
    if plan.monitoring is not None and len(plan.cluster) > most:
        what = f"{plan.cluster} is too long: Swarm's configs of the monitoring begin with it"
        yield Fault(INVENTORY, ("cluster",), what, f"write at most {most} letters")


def _names(workload: Workload) -> Iterator[tuple[str, str, int, str]]:
    """Yield the names of a stack: kind, longest name, its limit, and the words for its origin."""
    whose = f"the {workload.kind}'s"
    longest = max((part.name for part in workload.parts), key=len, default="")
    yield "service", f"{workload.stack}_{longest}", LONGEST_SERVICE, f"{whose} or the host's name"
    yield "config", f"{workload.stack}-launcher-{'0' * 8}", LONGEST_CONFIG, f"{whose} name"
    secrets = [f"{workload.stack}-{secret.name}-{'0' * 8}" for secret in workload.secrets]
    longest = max(secrets, key=len, default="")
    yield "secret", longest, LONGEST_CONFIG, f"{whose} or the secret's name"


def _manager_notes(plan: Plan) -> Iterator[str]:
    managers = sum("manager" in host.roles for host in plan.hosts)
    if managers and managers % 2 == 0:
        yield (
            f"{managers} managers survive the loss of {managers // 2 - 1}, as {managers - 1} do: "
            "make it an odd number"
        )


def _metrics_notes(plan: Plan, workloads: Iterable[Workload]) -> Iterator[str]:
    """Describe how to reach a metrics port on the overlay network, without kit's Prometheus."""
    if plan.monitoring is not None:
        return
    for workload in workloads:
        first = workload.working[0] if workload.rendezvous and workload.working else None
        if first is not None and first.ports and not workload.host_network:
            name, port = f"tasks.{workload.stack}_{first.name}", first.ports[0].number
            yield (
                f"{workload.name}: its metrics are on port {port} of the network "
                f"{network_name(plan)}, not of the hosts: let Prometheus join the network, and "
                f"look up {name}"
            )


def _platform(plan: Plan) -> Platform:
    overlay = plan.network.driver == "overlay"
    return Platform(
        cluster=plan.cluster,
        network=network_name(plan),
        network_image=pinned(NETWORK_IMAGE, plan.lock) if overlay else None,
        mtu=plan.network.mtu,
        encrypted=plan.network.encrypted,
        subnet=plan.network.subnet,
        registry=registry_part(plan),
        registry_address=plan.registry.address if plan.registry else "",
        registry_volume=volume_name(plan.cluster, "registry"),
        data=_data(plan),
        data_port=plan.data.port if plan.data else 0,
        data_volume=plan.data.volume if plan.data else "",
        key=key_name(plan.cluster),
    )


def metrics_alias(port: int) -> str:
    """Return the name on the overlay of all containers with metrics at a port."""
    return f"kit-metrics-{port}"


def monitoring_stack(cluster: str) -> str:
    """Return the name of the stack of the monitoring."""
    return f"{cluster}-monitoring"


def monitoring_secret(cluster: str, secret: Secret) -> str:
    """Return the name in Swarm of a secret of the monitoring."""
    return f"{monitoring_stack(cluster)}-{secret.name}"


def _monitoring(plan: Plan, workloads: Sequence[Workload]) -> Monitoring | None:
    """Prometheus finds jobs by a name on the overlay, or at their hosts' addresses."""
    jobs = [(each, port) for each in workloads if (port := metrics_port(each))]
    if plan.network.driver == "host":
        targets = tuple(at(host, port) for each, port in jobs for host in _hosts(each))
        scrapes = [Scrape("train", targets, own_labels=True)] if targets else []
        where = f"http://127.0.0.1:{PROMETHEUS_PORT}"
    else:
        # A job without a port of its own adds no port: the configuration stays.
        ports = sorted({METRICS_PORT, *(port for _, port in jobs)})
        scrapes = [
            Scrape(
                "train" if port == METRICS_PORT else f"train-{port}",
                dns=metrics_alias(port),
                port=port,
                own_labels=True,
            )
            for port in ports
        ]
        where = f"http://{monitoring_stack(plan.cluster)}_{Role.PROMETHEUS}:{PROMETHEUS_PORT}"
    scrapes += server_scrapes(workloads)
    return monitoring(plan, scrapes, where, host_network=plan.network.driver == "host")


def _hosts(workload: Workload) -> list[Host]:
    return [host for part in workload.working for host in part.hosts]


def _monitoring_outputs(plan: Plan, made: Monitoring) -> Iterator[Output]:
    yield from monitoring_outputs(made.scrapes, made.alertmanager)
    without = [host.name for host in plan.hosts if not host.gpus]
    values = {
        "monitoring": made,
        "cluster": plan.cluster,
        "stack": monitoring_stack(plan.cluster),
        "network": network_name(plan) if plan.network.driver == "overlay" else "",
        "constraint_home": f"node.labels.{HOST_LABEL} == {made.host.name}",
        "with_gpus": [f"node.labels.{HOST_LABEL} != {name}" for name in without],
        "secrets": {
            secret.name: monitoring_secret(plan.cluster, secret) for secret in made.grafana.secrets
        },
        "volumes": {
            name: volume_name(plan.cluster, name) for name in (Role.PROMETHEUS, Role.GRAFANA)
        },
    }
    configs = [*made.prometheus.configs, *made.grafana.configs]
    configs += made.dcgm_exporter.configs if made.dcgm_exporter else ()
    yield Output(
        MONITORING,
        f"{MONITORING}.j2",
        values,
        configs=tuple(configs),
        stack=monitoring_stack(plan.cluster),
    )


def _outputs(
    plan: Plan,
    platform: Platform,
    workloads: Sequence[Workload],
    made: Monitoring | None,
    ports: Mapping[str, tuple[OpenPort, ...]],
) -> Iterator[Output]:
    there = bool(platform.network_image or platform.registry or platform.data)
    if there:
        yield Output(PLATFORM, "platform.stack.yaml.j2", {"platform": platform})
    for workload in workloads:
        if not workload.parts:
            continue
        kind = "train-{job}" if workload.rendezvous else "serve-{server}"
        yield Output(
            f"{workload.stack}.stack.yaml",
            f"{kind}.stack.yaml.j2",
            {"stack": _stack(plan, workload, after_platform=there)},
            (workload.file,),
            _configs(workload),
            workload.stack,
        )
    if made is not None:
        yield from _monitoring_outputs(plan, made)
    placed = [workload for workload in workloads if workload.parts]
    labels = {"labels": node_labels(plan.hosts, placed, plan.data)}
    yield Output("label-nodes.sh", "label-nodes.sh.j2", labels, plan.sources)
    insecure = platform.registry_address if platform.registry else ""
    managers = managers_of(plan.hosts)
    resource = attrgetter("resource")
    any_port = hosts_with_any_port(workloads)
    yield from host_outputs(plan, EngineName.SWARM, managers, resource, insecure, ports, any_port)


def _configs(workload: Workload) -> tuple[Config, ...]:
    """Return the files of a stack; the parts that work share theirs."""
    others = (part for part in workload.parts if part.role is Role.PROXY)
    return (*workload.working[0].configs, *(each for part in others for each in part.configs))


def _stack(plan: Plan, workload: Workload, *, after_platform: bool) -> Stack:
    first = workload.working[0]
    port, overlay = metrics_port(workload), not workload.host_network
    return Stack(
        workload=workload,
        environment=_written(first, (each for each in first.environment if not each.own)),
        services=tuple(_service(workload, part) for part in workload.working),
        helpers=tuple(
            _service(workload, part)
            for part in workload.parts
            if not part.role.works and part.role is not Role.PROXY
        ),
        proxies=tuple(
            _service(workload, part) for part in workload.parts if part.role is Role.PROXY
        ),
        network="host" if workload.host_network else network_name(plan),
        alias=_alias(workload.name),
        after_platform=after_platform,
        metrics_alias=metrics_alias(port) if plan.monitoring and port and overlay else "",
        key=key_name(plan.cluster),
    )


def _service(workload: Workload, part: Part) -> Service:
    variables = part.environment
    if part.role.works:
        variables = tuple(each for each in variables if each.own)
    return Service(part, _constraint(workload, part), _written(part, variables))


def _constraint(workload: Workload, part: Part) -> str:
    if part.role is Role.RENDEZVOUS:
        name = part.hosts[0].name
        pinned_to = f"node.labels.{HOST_LABEL} == {name}"
        return pinned_to if workload.host_network else "node.role == manager"
    if part.role is Role.PROXY:
        return f"node.labels.{HOST_LABEL} == {part.hosts[0].name}"
    if part.role is Role.CHECKPOINTS:
        group = part.name.removeprefix(f"{Role.CHECKPOINTS}-")
        return constraint(workload.reads, f"{Role.TRAIN}-{group}")
    return constraint(workload.name, part.name)


def _written(part: Part, variables: Iterable[Variable]) -> Environment:
    """Return variables with Swarm's placeholders escaped."""
    return tuple(
        Variable(each.name, _value(part, each.value), each.why, each.own) for each in variables
    )


def _value(part: Part, value: str | Symbol) -> str:
    if value is Symbol.HOST:
        return HOST
    if value is Symbol.GPUS:
        first = part.placements[0]
        return ",".join(gpu.id for gpu in first.gpus) if first.pinned else "all"
    assert isinstance(value, str)
    return value if isinstance(value, Word) else untemplated(value) or EMPTY


def untemplated(value: str) -> str:
    """Escape `{{` in a value, which Swarm would read as a placeholder."""
    return value.replace("{{", '{{"{{"}}')
