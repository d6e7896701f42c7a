"""What the engines tell of themselves and of their Swarm, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kit.docker import Docker
from kit.engine.order import named
from kit.model import Host
from kit.plan.groups import HOST_LABEL

GPU_KIND = "kit_gpu"
"""The kind of generic resource under which daemon.json advertises a host's GPUs."""
OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})
"""The states of a task that holds nothing any more."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable by which the nvidia runtime gives a container its GPUs."""
STACK_LABEL = "com.docker.stack.namespace"
"""Docker's own label on everything that a stack made."""


@dataclass(frozen=True, slots=True)
class Member:
    """A host as its own engine sees it.

    `state` is Docker's: inactive, pending, active, locked or error. `control`: it is a manager.
    `managers` are the addresses of its Swarm's managers, `gpus` what it advertises as `kit_gpu`.
    """

    host: Host
    version: str
    state: str
    error: str
    node: str
    control: bool
    managers: tuple[str, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the managers see it; `host` is the inventory's name, where kit has labelled it."""

    id: str
    hostname: str
    host: str | None
    manager: bool
    ready: bool
    availability: str
    message: str
    labels: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]

    @property
    def name(self) -> str:
        """The host's name, or what it calls itself."""
        return self.host or self.hostname

    def label(self, name: str) -> str | None:
        """Return the value of a label."""
        return dict(self.labels).get(name)


@dataclass(frozen=True, slots=True)
class Service:
    """A service; `gpus` is how many a task reserves.

    `changed` is when its specification was last changed, in seconds since the epoch; `update` how
    the roll-out of that goes, in Docker's words ("" where there was none).
    """

    id: str
    name: str
    stack: str
    labels: tuple[tuple[str, str], ...]
    replicas: int
    image: str
    gpus: int
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    constraints: tuple[str, ...]
    changed: float
    update: str
    update_message: str

    def label(self, name: str) -> str | None:
        """Return the value of a label."""
        return dict(self.labels).get(name)

    def variable(self, name: str) -> str:
        """Return the value of a variable of its containers; "" where there is none."""
        return dict(self.environment).get(name, "")

    @property
    def part(self) -> str:
        """Its name in the stack's file."""
        return self.name.removeprefix(f"{self.stack}_")


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `node` is "" until Swarm has placed it, `desired` the state that Swarm wants it in.

    `stack` it has of its own: its service may be gone, and it still on its way.

    `devices` are the GPUs that its container is given (`all`, UUIDs or indexes). `created` and
    `at`, when its state was last told, are in seconds since the epoch.
    """

    id: str
    service: str
    stack: str
    slot: int
    node: str
    state: str
    desired: str
    message: str
    error: str
    exit_status: int | None
    devices: tuple[str, ...]
    created: float
    at: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Swarm as a manager sees it; `heartbeat` is in seconds, `secrets` are names alone."""

    id: str
    heartbeat: float
    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    tasks: tuple[Task, ...]
    secrets: tuple[str, ...]

    def node_of(self, host: str) -> Node | None:
        """Return the node that kit has labelled with a host's name.

        Of several, as after a host has left and joined again, the one that is ready.
        """
        nodes = sorted((node for node in self.nodes if node.host == host), key=lambda n: n.ready)
        return nodes[-1] if nodes else None

    def ready(self, node: str) -> bool:
        """Whether a node, by its ID, is there."""
        return any(each.id == node and each.ready for each in self.nodes)

    def stack(self, name: str) -> tuple[Service, ...]:
        """Return a stack's services."""
        return tuple(service for service in self.services if service.stack == name)

    def held(self, node: Node) -> dict[str, int]:
        """Return how many GPUs of a node each stack's tasks hold, as Swarm counts them."""
        services = {service.id: service for service in self.services}
        held: dict[str, int] = {}
        for task in self.tasks:
            service = services.get(task.service)
            if service and service.gpus and task.node == node.id and task.state not in OVER:
                held[service.stack] = held.get(service.stack, 0) + service.gpus
        return held

    def holders(self) -> dict[tuple[str, str], str]:
        """Return which stack's task has which GPU, by the host's and the GPU's names.

        A service that needs no GPU has none.
        """
        nodes = {node.id: node for node in self.nodes if node.ready}
        found: dict[tuple[str, str], str] = {}
        for task in self.tasks:
            node = nodes.get(task.node)
            if node is None or task.state in OVER:
                continue
            devices = node.gpus if task.devices == ("all",) else map(named, task.devices)
            found |= {(node.name, device): task.stack for device in devices}
        return found

    def tasks_of(self, services: Iterable[Service]) -> tuple[Task, ...]:
        """Return the tasks of some services, the oldest first."""
        ids = {service.id for service in services}
        return tuple(task for task in self.tasks if task.service in ids)


def see_member(host: Host) -> Member:
    """Ask a host's engine.

    Raises:
        KitError: It cannot be reached.
    """
    docker = Docker.of(host)
    try:
        info = docker.get("/info")
    finally:
        docker.close()
    swarm = info["Swarm"]
    return Member(
        host=host,
        version=info["ServerVersion"],
        state=swarm["LocalNodeState"],
        error=swarm["Error"],
        node=swarm["NodeID"],
        control=swarm["ControlAvailable"],
        managers=tuple(each["Addr"] for each in swarm["RemoteManagers"] or ()),
        gpus=_named(info.get("GenericResources")),
    )


def see_cluster(manager: Docker) -> Cluster:
    """Ask a manager.

    Raises:
        KitError: It cannot be reached, or is no manager.
    """
    swarm = manager.get("/swarm")
    return Cluster(
        id=swarm["ID"],
        heartbeat=swarm["Spec"]["Dispatcher"]["HeartbeatPeriod"] / 1e9,
        nodes=tuple(sorted(map(_node, manager.get("/nodes")), key=lambda node: node.name)),
        services=tuple(sorted(map(_service, manager.get("/services")), key=lambda s: s.name)),
        tasks=see_tasks(manager),
        secrets=tuple(secret["Spec"]["Name"] for secret in manager.get("/secrets")),
    )


def see_tasks(manager: Docker) -> tuple[Task, ...]:
    """Return all tasks, the oldest first."""
    return tuple(sorted(map(_task, manager.get("/tasks")), key=lambda task: task.created))


def _named(resources: Iterable[Mapping[str, Any]] | None) -> tuple[str, ...]:
    named = (each.get("NamedResourceSpec", {}) for each in resources or ())
    return tuple(each["Value"] for each in named if each.get("Kind") == GPU_KIND)


def _node(node: dict[str, Any]) -> Node:
    labels = node["Spec"].get("Labels") or {}
    return Node(
        id=node["ID"],
        hostname=node["Description"].get("Hostname", node["ID"]),
        host=labels.get(HOST_LABEL),
        manager=node["Spec"]["Role"] == "manager",
        ready=node["Status"]["State"] == "ready",
        availability=node["Spec"]["Availability"],
        message=node["Status"].get("Message", ""),
        labels=tuple(sorted(labels.items())),
        gpus=_named(node["Description"].get("Resources", {}).get("GenericResources")),
    )


def _service(service: dict[str, Any]) -> Service:
    spec = service["Spec"]
    labels, template = spec.get("Labels") or {}, spec["TaskTemplate"]
    container = template["ContainerSpec"]
    reserved = template.get("Resources", {}).get("Reservations", {}).get("GenericResources") or ()
    counts = [each.get("DiscreteResourceSpec", {}) for each in reserved]
    variables = (each.partition("=")[::2] for each in container.get("Env") or ())
    update = service.get("UpdateStatus") or {}
    return Service(
        id=service["ID"],
        name=spec["Name"],
        stack=labels.get(STACK_LABEL, ""),
        labels=tuple(sorted(labels.items())),
        replicas=spec["Mode"].get("Replicated", {}).get("Replicas", 0),
        image=container["Image"],
        gpus=sum(each["Value"] for each in counts if each.get("Kind") == GPU_KIND),
        environment=tuple((name, value) for name, value in variables),
        secrets=tuple(each["SecretName"] for each in container.get("Secrets") or ()),
        constraints=tuple(template.get("Placement", {}).get("Constraints") or ()),
        changed=seconds(service["UpdatedAt"]),
        update=update.get("State", ""),
        update_message=update.get("Message", ""),
    )


def _task(task: dict[str, Any]) -> Task:
    status = task["Status"]
    container = task["Spec"].get("ContainerSpec", {})
    variables = dict(each.partition("=")[::2] for each in container.get("Env") or ())
    visible = variables.get(VISIBLE, "void")
    return Task(
        id=task["ID"],
        service=task.get("ServiceID", ""),
        stack=(container.get("Labels") or {}).get(STACK_LABEL, ""),
        slot=task.get("Slot", 0),
        node=task.get("NodeID", ""),
        state=status["State"],
        desired=task["DesiredState"],
        message=status.get("Message", ""),
        error=status.get("Err", ""),
        exit_status=(status.get("ContainerStatus") or {}).get("ExitCode"),
        devices=() if visible in {"", "void", "none"} else tuple(visible.split(",")),
        created=seconds(task["CreatedAt"]),
        at=seconds(status["Timestamp"]),
    )


def seconds(stamp: str) -> float:
    """Return a time of the Engine API (RFC 3339, nanoseconds) in seconds since the epoch."""
    return datetime.fromisoformat(stamp).timestamp()
