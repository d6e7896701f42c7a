"""The plan as Swarm stacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from kit.errors import FaultsError
from kit.model import EngineName
from kit.plan.types import MountPoint, Volume
from kit.plan.work import JobPlan, Plan, ServerPlan, manager_of, managers_of
from kit.targets.hosts import host_outputs, hosts_with_any_port
from kit.targets.lowered import Lowered, Output
from kit.targets.swarm.labels import node_labels
from kit.targets.swarm.monitoring import monitoring_files, monitoring_of
from kit.targets.swarm.names import checkpoints_alias, name_faults, network_name
from kit.targets.swarm.platform import (
    NETWORK_IMAGE,
    PLATFORM,
    data_server,
    platform_of,
    platform_stack,
)
from kit.targets.swarm.stacks import Stack, configs_of, stack_of, untemplated
from kit.workload.monitoring import Monitoring, engine_services, platform_parts
from kit.workload.names import stack_of_job
from kit.workload.ports import (
    Listener,
    OpenPort,
    low_port_faults,
    open_ports,
    port_faults,
    services,
)
from kit.workload.ports import Service as OpenService
from kit.workload.proxy import proxy_host, with_proxy
from kit.workload.registry import registry_part
from kit.workload.serving import MOST_SOURCES, endpoints, serving, source_hosts
from kit.workload.training import FAULT_VARIABLES, RENDEZVOUS_PORT, own_port, training
from kit.workload.types import Part, Rendezvous, Role, Variable, Workload


def lower(plan: Plan) -> Lowered:
    """Lower the plan to Swarm stacks.

    Raises:
        FaultsError: Ports or names conflict, or Swarm rejects a name.
    """
    host_network = plan.network.driver == "host"
    jobs = [_job(plan, job, host_network=host_network) for job in plan.jobs]
    servers = [_server(plan, server, host_network=host_network) for server in plan.servers]
    platform, made = platform_stack(plan), monitoring_of(plan, [*jobs, *servers])
    platform_services = platform.services if platform else ()
    published = [
        each.part for each in platform_services if each.published or each.network == "host"
    ]
    registry = [part for part in published if part.role is Role.REGISTRY]
    shared = (*registry, *platform_parts(made), *(p for p in published if p not in registry))
    opened = [*services(shared), *engine_services(plan)]
    workloads = (*jobs, *_proxied(plan, opened, jobs, servers))
    listeners = [each for workload in workloads for each in _listeners(workload)]
    faults = [
        *port_faults(opened, listeners),
        *low_port_faults(workloads),
        *name_faults(plan, workloads),
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
        optional_images=() if host_network else (NETWORK_IMAGE,),
        own_notes=(*_manager_notes(plan), *_metrics_notes(plan, workloads)),
        ports=ports,
    )


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
        data_server=data_server(plan),
    )
    return _readable(made)


def _server(plan: Plan, server: ServerPlan, *, host_network: bool) -> Workload:
    offered, port = endpoints(server), server.server.transfer_port
    # Swarm may move them among all hosts with checkpoints.
    offering = [host for part in offered for host in part.hosts]
    listed = source_hosts(plan, server, offering) if offered and host_network else ()
    names = [host.address for host in listed] or [checkpoints_alias(server.name)]
    sources = [f"http://{name}:{port}" for name in names]
    addressed = [_addressed(part, checkpoints_alias(server.name), host_network) for part in offered]
    made = serving(plan, server, addressed, sources if offered else (), host_network=host_network)
    return _readable(made)


def _proxied(
    plan: Plan, opened: Iterable[OpenService], jobs: Iterable[Workload], servers: Sequence[Workload]
) -> tuple[Workload, ...]:
    """Add the proxies of servers. None asks a host at whose port another service answers."""
    taken = {(each.port.number, each.host.name) for each in opened}
    for workload in (*jobs, *servers):
        taken |= {(each.port.number, each.host.name) for each in _listeners(workload)}
    taken |= {
        (proxy.port, proxy_host(plan, proxy).name)
        for each in plan.serving
        if (proxy := each.server.proxy)
    }
    return tuple(
        with_proxy(plan, each, made, {host for port, host in taken if port == each.server.port})
        for each, made in zip(plan.servers, servers, strict=True)
    )


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


def _listeners(workload: Workload) -> Iterator[Listener]:
    for part in workload.parts:
        for port in part.ports:
            if workload.host_network or port.public:
                for host in part.hosts:
                    yield Listener(workload, port, host, host.address)


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


def _outputs(
    plan: Plan,
    platform: Stack | None,
    workloads: Sequence[Workload],
    made: Monitoring | None,
    ports: Mapping[str, tuple[OpenPort, ...]],
) -> Iterator[Output]:
    if platform is not None:
        values = {"stack": platform, "platform": platform_of(plan)}
        yield Output(PLATFORM, "platform.stack.yaml.j2", values)
    for workload in workloads:
        if not workload.parts:
            continue
        kind = "train-{job}" if workload.rendezvous else "serve-{server}"
        yield Output(
            f"{workload.stack}.stack.yaml",
            f"{kind}.stack.yaml.j2",
            {"stack": stack_of(plan, workload, after_platform=platform is not None)},
            (workload.file,),
            configs_of(workload),
            workload.stack,
        )
    if made is not None:
        yield from monitoring_files(plan, made)
    placed = [workload for workload in workloads if workload.parts]
    labels = {"labels": node_labels(plan.hosts, placed, plan.data)}
    yield Output("label-nodes.sh", "label-nodes.sh.j2", labels, plan.sources)
    insecure = plan.registry.address if plan.registry and registry_part(plan) else ""
    managers = managers_of(plan.hosts)
    resource = attrgetter("resource")
    any_port = hosts_with_any_port(workloads)
    yield from host_outputs(plan, EngineName.SWARM, managers, resource, insecure, ports, any_port)
