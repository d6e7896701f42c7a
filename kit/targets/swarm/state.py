"""The state of a Swarm as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kit.model import Host
from kit.queue.words import OWNER
from kit.values import grouped
from kit.workload.types import Kind

OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})
"""The states of a task that holds no resources."""
JOB_OWNER, SERVER_OWNER = "kit.job", "kit.server"
"""The labels with the name of a job or a server on all services of its stack."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable from which the nvidia runtime gives a container its GPUs."""
FILE_LABEL = "kit.file"
"""The label with the hash of the file on all services of a rendered stack."""


@dataclass(frozen=True, slots=True)
class Member:
    """A host from its own engine's view.

    `state` is Docker's: inactive, pending, active, locked or error. `control`: it is a manager.
    `managers` are the addresses of its Swarm's managers, `gpus` its `kit_gpu` resources.
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
    """A node from the managers' view; `host` is its label with the inventory's name.

    It may be neither `ready` nor `down`: a new leader of the managers has not heard of it yet.
    """

    id: str
    hostname: str
    host: str | None
    manager: bool
    ready: bool
    availability: str
    message: str
    labels: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    down: bool = False

    @property
    def name(self) -> str:
        """The host's name, or the node's own hostname."""
        return self.host or self.hostname

    def label(self, name: str) -> str | None:
        """Return the value of a label."""
        return next((value for label, value in self.labels if label == name), None)


@dataclass(frozen=True, slots=True)
class Service:
    """A service; `gpus` is the number that each task reserves.

    `changed` is the time of the last change of its specification, in seconds since the epoch.
    `update` is the state of the roll-out in Docker's words ("" if there is none). `made_of` is a
    hash of what its containers are made of, `spec` the whole specification in Docker's API.
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
    made_of: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def label(self, name: str) -> str | None:
        """Return the value of a label."""
        return next((value for label, value in self.labels if label == name), None)

    def variable(self, name: str) -> str:
        """Return the value of a variable of its containers, or ""."""
        return next((value for variable, value in self.environment if variable == name), "")

    @property
    def part(self) -> str:
        """Its name in the stack's file."""
        return self.name.removeprefix(f"{self.stack}_")

    @property
    def kind(self) -> Kind | None:
        """The kind of the workload of its stack; None for other stacks."""
        if self.label(SERVER_OWNER):
            return Kind.SERVER
        return Kind.JOB if self.label(JOB_OWNER) else None

    @property
    def owner(self) -> str | None:
        """The name of the job or the server of its stack."""
        return self.label(SERVER_OWNER) or self.label(JOB_OWNER)


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `node` is "" before Swarm places it, `desired` is the state that Swarm aims for.

    `stack` and `gpus`, the number that it reserves, are its own: its service may be removed while
    it still saves and ends.

    `made_of` is that of its service when it was created.

    `devices` are the GPUs of its container: `all`, or their names in Swarm. `created` and `at`, the
    time of its last report, are in seconds since the epoch.
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
    made_of: str = ""

    @property
    def restarts(self) -> bool:
        """Whether it has failed and Swarm has not decided yet whether another one follows."""
        return self.state in {"failed", "rejected"} and self.desired != "shutdown"


@dataclass(frozen=True)
class Cluster:
    """A Swarm from a manager's view; `heartbeat` is in seconds, `secrets` are only names.

    `subnets` are the addresses of its networks, by name, in CIDR notation; `networks` are the names
    of those that services use, by ID.
    """

    id: str
    heartbeat: float
    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    tasks: tuple[Task, ...]
    secrets: tuple[str, ...]
    subnets: tuple[tuple[str, str], ...] = ()
    networks: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _by_host(self) -> Mapping[str | None, Node]:
        return {node.host: node for node in sorted(self.nodes, key=lambda node: node.ready)}

    @cached_property
    def _by_stack(self) -> Mapping[str, tuple[Service, ...]]:
        return grouped((service.stack, service) for service in self.services)

    @cached_property
    def _by_owner(self) -> Mapping[str | None, tuple[Service, ...]]:
        return grouped((service.owner, service) for service in self.services)

    @cached_property
    def _by_service(self) -> Mapping[str, tuple[Task, ...]]:
        return grouped((task.service, task) for task in self.tasks)

    @cached_property
    def _by_node(self) -> Mapping[str, tuple[Task, ...]]:
        return grouped((task.node, task) for task in self.tasks)

    @cached_property
    def _stacks(self) -> Mapping[str, str]:
        return {service.id: service.stack for service in self.services}

    @cached_property
    def _by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    def node(self, id_: str) -> Node | None:
        """Return the node with an ID."""
        return self._by_id.get(id_)

    def node_of(self, host: str) -> Node | None:
        """Return the node with the label of a host.

        A host that left and joined again has several nodes; return one that is ready.
        """
        return self._by_host.get(host)

    def ready(self, node: str) -> bool:
        """Return whether the node with an ID is ready."""
        found = self.node(node)
        return found is not None and found.ready

    def stack(self, name: str) -> tuple[Service, ...]:
        """Return a stack's services."""
        return self._by_stack.get(name, ())

    def of(self, name: str) -> tuple[Service, ...]:
        """Return the services of a job or a server, by its name."""
        return self._by_owner.get(name, ())

    def queued(self, stack: str) -> bool:
        """Return whether a stack is that of a job of the queue."""
        return any(service.label(OWNER) for service in self.stack(stack))

    def owner(self, stack: str) -> str:
        """Return the job or the server of a stack, or the stack's own name."""
        names = (service.owner for service in self.stack(stack))
        return next((name for name in names if name is not None), stack)

    def held(self, node: Node) -> dict[str, int]:
        """Return the number of a node's GPUs that each stack's tasks hold, as Swarm counts them."""
        held: dict[str, int] = {}
        for task in self._by_node.get(node.id, ()):
            if task.gpus and task.state not in OVER:
                stack = self._stacks.get(task.service, task.stack)
                held[stack] = held.get(stack, 0) + task.gpus
        return held

    def holders(self) -> dict[tuple[str, str], str]:
        """Return the stack that holds each GPU, by the names of host and GPU.

        A service without GPUs holds none. The monitoring holds none: it only sees them.
        """
        nodes = {node.id: node for node in self.nodes if node.ready}
        shared = {each.id for each in self.services if each.label(FILE_LABEL) and not each.owner}
        stacks: dict[tuple[str, str], str] = {}
        for task in self.tasks:
            node = nodes.get(task.node)
            if node is None or task.state in OVER or task.service in shared:
                continue
            devices = node.gpus if task.devices == ("all",) else task.devices
            stacks |= {(node.name, device): task.stack for device in devices}
        return stacks

    def given_up(self, service: Service) -> tuple[Task, ...]:
        """Return the newest tasks of the slots that failed and are not restarted."""
        newest = {task.slot: task for task in self.tasks_of([service])}
        over = OVER - {"complete", "remove"}
        return tuple(task for task in newest.values() if task.state in over)

    def tasks_of(self, services: Iterable[Service]) -> tuple[Task, ...]:
        """Return the tasks of services, the oldest first."""
        ids = {service.id for service in services}
        if len(ids) == 1:
            return self._by_service.get(ids.pop(), ())
        return tuple(task for task in self.tasks if task.service in ids)
