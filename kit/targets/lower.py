"""From a plan over its parts to the terms of a target."""

from __future__ import annotations

from collections.abc import Callable

from kit.model import EngineName, Host
from kit.plan.work import Plan
from kit.targets.compose import lower as compose
from kit.targets.compose.addressing import ComposeAddressing
from kit.targets.kubernetes import lower as kubernetes
from kit.targets.kubernetes.addressing import KubernetesAddressing
from kit.targets.local import lower as local
from kit.targets.local.addressing import LocalAddressing
from kit.targets.lowered import Lowered
from kit.targets.swarm import lower as swarm
from kit.targets.swarm.addressing import SwarmAddressing
from kit.workload.addressing import Addressing
from kit.workload.make import Parts, make_parts
from kit.workload.monitoring import platform_parts

Lower = Callable[[Plan, Parts], Lowered]
TARGETS: dict[EngineName, tuple[Callable[[Plan], Addressing], Lower]] = {
    EngineName.LOCAL: (lambda _: LocalAddressing(), local.lower),
    EngineName.COMPOSE: (ComposeAddressing, compose.lower),
    EngineName.SWARM: (SwarmAddressing, swarm.lower),
    EngineName.KUBERNETES: (KubernetesAddressing, kubernetes.lower),
}
"""How parts reach each other under each target, and the function that lowers them."""


def lower(plan: Plan, engine: EngineName) -> Lowered:
    """Lower a plan to the terms of a target.

    Raises:
        FaultsError: The target does not support the plan, or names or ports conflict.
    """
    addressing, lowers = TARGETS[engine]
    return lowers(plan, make_parts(plan, addressing(plan)))


def has_data_services(engine: EngineName) -> bool:
    """Return whether data services run under a target; without them, its `lower` rejects data."""
    return engine is not EngineName.KUBERNETES


def platform_of(plan: Plan, engine: EngineName) -> dict[str, tuple[Host, int]]:
    """Return the services for people that kit runs on one host, with that host and the port."""
    addressing, _ = TARGETS[engine]
    parts = make_parts(plan, addressing(plan))
    shared = (*platform_parts(parts.monitoring), *parts.data)
    return {
        str(part.role): (part.hosts[0], port.number)
        for part in (*shared, *((parts.registry,) if parts.registry else ()))
        for port in part.ports
        if port.public and len(part.hosts) == 1
    }
