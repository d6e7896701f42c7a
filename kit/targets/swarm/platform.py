"""The shared parts of a cluster's stacks: overlay network, registry, data services. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.plan.images import pinned
from kit.plan.storage import volume_name
from kit.plan.types import Volume
from kit.plan.work import Plan
from kit.targets.swarm.labels import data_constraint
from kit.targets.swarm.names import key_name, network_name
from kit.targets.swarm.stacks import OVERLAY, Service, Stack, networks_of, pinned_to, service_of
from kit.workload.data import VOLUME
from kit.workload.settings import Variable, Word
from kit.workload.types import Part, Role
from trainer.contract.bearer import KEY

PLATFORM = "platform.stack.yaml"
NETWORK_IMAGE = "hello-world:linux"
"""The image of the service that holds the overlay network. It has no task, so no host pulls it."""


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts of the platform's file besides services; `overlay` is its network's name, or "".

    `after_labels`: its services are placed by node labels.
    """

    cluster: str
    overlay: str
    mtu: int
    encrypted: bool
    subnet: str
    after_labels: bool


def platform_of(plan: Plan, registry: Part | None) -> Platform:
    """Return the values of the platform's file besides its stack."""
    network = plan.network
    return Platform(
        cluster=plan.cluster,
        overlay=network_name(plan) if network.driver == "overlay" else "",
        mtu=network.mtu,
        encrypted=network.encrypted,
        subnet=network.subnet,
        after_labels=bool(plan.data or registry),
    )


def platform_stack(plan: Plan, registry: Part | None, data_parts: Sequence[Part]) -> Stack | None:
    """Return the stack of the services that jobs share, or None if there is none."""
    services = [*_network(plan), *_registry(plan, registry), *_data(plan, data_parts)]
    if not services:
        return None
    data = plan.data
    volumes = [(VOLUME, data.volume)] if data else []
    if registry:
        volumes.insert(0, (Role.REGISTRY, volume_name(plan.cluster, Role.REGISTRY)))
    return Stack(
        name=f"{plan.cluster}-platform",
        labels=(),
        services=tuple(services),
        networks=tuple(
            each for each in networks_of(plan, (s.part for s in services)) if each[0] != OVERLAY
        ),
        secrets=((KEY, key_name(plan.cluster)),) if data else (),
        volumes=tuple(Volume(key, name, None, None, owned=True) for key, name in volumes),
        key=key_name(plan.cluster) if data else "",
    )


def _network(plan: Plan) -> Iterator[Service]:
    """Yield the service that makes the overlay: Swarm creates a network only for a service."""
    if plan.network.driver != "overlay":
        return
    part = Part(
        role=Role.NETWORK,
        name=Role.NETWORK,
        hosts=(),
        placements=(),
        replicas=0,
        image=pinned(NETWORK_IMAGE, plan.lock),
        launch=(),
        environment=(Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),),
        about=(
            "Swarm creates a stack's network only for a service that uses it: this one has no "
            "task.",
        ),
    )
    yield service_of(plan, part, ())


def _registry(plan: Plan, registry: Part | None) -> Iterator[Service]:
    if registry is not None:
        yield service_of(plan, registry, [pinned_to(registry)])


def _data(plan: Plan, parts: Sequence[Part]) -> Iterator[Service]:
    for part in parts:
        label = data_constraint("agent" if part.name == Role.DATA_AGENT else "storage")
        yield service_of(plan, part, [label])
