"""The plan as Swarm stacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from kit.errors import FaultsError
from kit.model import EngineName
from kit.plan.types import MountPoint, Volume
from kit.plan.work import Plan, managers_of
from kit.targets.hosts import host_outputs, hosts_with_any_port
from kit.targets.lowered import Lowered, Output
from kit.targets.swarm.labels import node_labels
from kit.targets.swarm.monitoring import monitoring_files
from kit.targets.swarm.names import name_faults, network_name
from kit.targets.swarm.platform import NETWORK_IMAGE, PLATFORM, platform_of, platform_stack
from kit.targets.swarm.stacks import configs_of, stack_of, untemplated
from kit.workload.make import Parts
from kit.workload.ports import OpenPort
from kit.workload.types import Kind, Workload


def lower(plan: Plan, parts: Parts) -> Lowered:
    """Lower the plan to Swarm stacks.

    Raises:
        FaultsError: Ports or names conflict, or Swarm rejects a name.
    """
    if faults := [*parts.faults(), *name_faults(plan, parts.workloads)]:
        raise FaultsError(faults)
    workloads, ports = tuple(map(_readable, parts.workloads)), parts.ports
    labels = node_labels(plan.hosts, [each for each in workloads if each.parts], plan.data)
    overlay = network_name(plan) if plan.network.driver == "overlay" else ""
    return Lowered(
        engine=EngineName.SWARM,
        plan=plan,
        workloads=workloads,
        outputs=tuple(_outputs(plan, parts, workloads, ports, labels)),
        images=plan.images,
        optional_images=(NETWORK_IMAGE,) if overlay else (),
        own_notes=(*_manager_notes(plan), *_metrics_notes(plan, workloads)),
        ports=ports,
        managers=managers_of(plan.hosts),
        labels=labels,
        overlay=overlay,
    )


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
    parts: Parts,
    workloads: Sequence[Workload],
    ports: Mapping[str, tuple[OpenPort, ...]],
    labels: Mapping[str, tuple[tuple[str, str], ...]],
) -> Iterator[Output]:
    platform = platform_stack(plan, parts.registry, parts.data)
    if platform is not None:
        values = {"stack": platform, "platform": platform_of(plan, parts.registry)}
        yield Output(PLATFORM, "platform.stack.yaml.j2", values)
    for workload in workloads:
        if not workload.parts:
            continue
        kind = "train-{job}" if workload.kind is Kind.JOB else "serve-{server}"
        yield Output(
            f"{workload.stack}.stack.yaml",
            f"{kind}.stack.yaml.j2",
            {"stack": stack_of(plan, workload, after_platform=platform is not None)},
            (workload.file,),
            configs_of(workload),
            workload.stack,
        )
    if parts.monitoring is not None:
        yield from monitoring_files(plan, parts.monitoring)
    yield Output("label-nodes.sh", "label-nodes.sh.j2", {"labels": labels}, plan.sources)
    insecure = plan.registry.address if plan.registry and parts.registry else ""
    managers = managers_of(plan.hosts)
    resource = attrgetter("resource")
    any_port = hosts_with_any_port(workloads)
    yield from host_outputs(plan, EngineName.SWARM, managers, resource, insecure, ports, any_port)
