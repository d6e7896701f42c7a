"""What is known of a Swarm, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kit.model import Host
from kit.workload.types import Kind

OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})
"""The states of a task that holds nothing any more."""
JOB_OWNER, SERVER_OWNER = "kit.job", "kit.server"
"""The labels of all services of a job's or a server's stack: its name."""
FILE_LABEL = "kit.file"
"""On each service of a rendered stack: the hash of its file."""


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

    @property
    def kind(self) -> Kind | None:
        """What its stack belongs to; None for what is neither a job's nor a server's."""
        if self.label(SERVER_OWNER):
            return Kind.SERVER
        return Kind.JOB if self.label(JOB_OWNER) else None

    @property
    def owner(self) -> str | None:
        """The name of the job or the server that its stack belongs to."""
        return self.label(SERVER_OWNER) or self.label(JOB_OWNER)


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `node` is "" until Swarm has placed it, `desired` the state that Swarm wants it in.

    `stack` and `gpus`, how many it reserves, are its own: its service may have been removed while
    it still saves and ends.

    `devices` are the GPUs that its container is given: `all`, or as its node offers them.
    `created` and `at`, when its state was last told, are in seconds since the epoch.
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
    gpus: int
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

    def of(self, name: str) -> tuple[Service, ...]:
        """Return the services of a job or a server, by its name."""
        return tuple(service for service in self.services if service.owner == name)

    def owner(self, stack: str) -> str:
        """Return the job or the server that a stack belongs to, or the stack's name."""
        names = (service.owner for service in self.stack(stack))
        return next((name for name in names if name is not None), stack)

    def held(self, node: Node) -> dict[str, int]:
        """Return how many GPUs of a node each stack's tasks hold, as Swarm counts them."""
        stacks = {service.id: service.stack for service in self.services}
        held: dict[str, int] = {}
        for task in self.tasks:
            if task.gpus and task.node == node.id and task.state not in OVER:
                stack = stacks.get(task.service, task.stack)
                held[stack] = held.get(stack, 0) + task.gpus
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
            devices = node.gpus if task.devices == ("all",) else task.devices
            found |= {(node.name, device): task.stack for device in devices}
        return found

    def given_up(self, service: Service) -> tuple[Task, ...]:
        """Return the newest tasks of the slots that have failed and are not started again."""
        newest = {task.slot: task for task in self.tasks_of([service])}
        over = OVER - {"complete", "remove"}
        return tuple(task for task in newest.values() if task.state in over)

    def tasks_of(self, services: Iterable[Service]) -> tuple[Task, ...]:
        """Return the tasks of some services, the oldest first."""
        ids = {service.id for service in services}
        return tuple(task for task in self.tasks if task.service in ids)
