"""What all stacks of a cluster need: the overlay network, the registry, the data services. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kit.plan.images import pinned
from kit.plan.storage import volume_name
from kit.plan.work import Plan
from kit.targets.swarm.labels import data_constraint
from kit.targets.swarm.names import key_name, network_name
from kit.targets.swarm.stacks import Service, written
from kit.values import endpoint
from kit.workload.data import Addresses, data_parts, some_peers
from kit.workload.registry import registry_part
from kit.workload.types import Part, Role

PLATFORM = "platform.stack.yaml"
NETWORK_IMAGE = "hello-world:linux"
"""The image of the service that holds the overlay network. It has no task, so no host pulls it."""


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


def platform_of(plan: Plan) -> Platform:
    """Return the values of the platform's file."""
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
        Service(
            part,
            data_constraint("agent" if part.name == Role.DATA_AGENT else "storage"),
            written(part, part.environment),
        )
        for part in data_parts(data, addresses)
    )


def data_server(plan: Plan) -> str:
    """Return the URL of the data server, or "" without one."""
    if plan.data is None:
        return ""
    if plan.network.driver == "host":
        return f"http://{endpoint(plan.data.storage.address, plan.data.port)}"
    return f"http://{plan.cluster}-platform_{Role.DATA_SERVER}:{plan.data.port}"
