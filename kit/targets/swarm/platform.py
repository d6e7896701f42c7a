"""What all stacks of a cluster need: the overlay network, the registry, the data services. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kit.plan.images import pinned
from kit.plan.storage import volume_name
from kit.plan.types import Volume
from kit.plan.work import Plan
from kit.targets.swarm.labels import data_constraint
from kit.targets.swarm.names import key_name, network_name
from kit.targets.swarm.stacks import (
    OVERLAY,
    Service,
    Stack,
    networks_of,
    pinned_to,
    service_of,
)
from kit.values import endpoint
from kit.workload.data import VOLUME, Addresses, data_parts, some_peers
from kit.workload.registry import registry_part
from kit.workload.types import Part, Role, Variable, Word
from trainer.contract.bearer import KEY

PLATFORM = "platform.stack.yaml"
NETWORK_IMAGE = "hello-world:linux"
"""The image of the service that holds the overlay network. It has no task, so no host pulls it."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What the platform's file has besides services; `overlay` is its network's name, or "".

    `after_labels`: its services are placed by node labels.
    """

    cluster: str
    overlay: str
    mtu: int
    encrypted: bool
    subnet: str
    after_labels: bool


def platform_of(plan: Plan) -> Platform:
    """Return the values of the platform's file besides its stack."""
    network = plan.network
    return Platform(
        cluster=plan.cluster,
        overlay=network_name(plan) if network.driver == "overlay" else "",
        mtu=network.mtu,
        encrypted=network.encrypted,
        subnet=network.subnet,
        after_labels=bool(plan.data or registry_part(plan)),
    )


def platform_stack(plan: Plan) -> Stack | None:
    """Return the stack of the services that jobs share, or None if there is none."""
    services = [*_network(plan), *_registry(plan), *_data(plan)]
    if not services:
        return None
    data = plan.data
    volumes = [(VOLUME, data.volume)] if data else []
    if registry_part(plan):
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


def _registry(plan: Plan) -> Iterator[Service]:
    part = registry_part(plan)
    if part is not None:
        yield service_of(plan, part, [pinned_to(part)])


def _data(plan: Plan) -> tuple[Service, ...]:
    """Return the data services; on the overlay they find each other by the names of services."""
    data = plan.data
    if data is None:
        return ()
    if plan.network.driver == "host":
        peers = [endpoint(host.address, data.peer_port) for host in data.agents]
        addresses = Addresses(data_server(plan), some_peers(data, peers))
    else:
        # The stack's name makes them unique: other stacks are on the same network.
        stack = f"{plan.cluster}-platform"
        names = ["data-storage", *([Role.DATA_AGENT] if len(data.agents) > 1 else [])]
        peers = [f"tasks.{stack}_{name}:{data.peer_port}" for name in names]
        addresses = Addresses(data_server(plan), tuple(peers))
    return tuple(
        service_of(
            plan, part, [data_constraint("agent" if part.name == Role.DATA_AGENT else "storage")]
        )
        for part in data_parts(plan.cluster, data, addresses)
    )


def data_server(plan: Plan) -> str:
    """Return the URL of the data server, or "" without one."""
    if plan.data is None:
        return ""
    if plan.network.driver == "host":
        return f"http://{endpoint(plan.data.storage.address, plan.data.port)}"
    return f"http://{plan.cluster}-platform_{Role.DATA_SERVER}:{plan.data.port}"
