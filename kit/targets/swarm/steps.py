"""What kit can do to a Swarm: each a `Step` with what is needed to take it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kit.model import Host
from kit.runtime.steps import Step
from kit.targets.swarm.labels import JOB_LABEL, NOWHERE
from kit.targets.swarm.seen import FILE_LABEL, Cluster, Node, Service

JOINED_LABEL = "kit.joined"
"""On nodes that kit brought into the Swarm: `kit swarm down` takes those out again, no others."""

Labels = tuple[tuple[str, str | None], ...]
"""Names and values; None takes the label away."""


@dataclass(frozen=True, slots=True)
class Init(Step):
    """Begin a Swarm on a host."""

    host: Host


@dataclass(frozen=True, slots=True)
class SetHeartbeat(Step):
    """Let nodes tell every so many seconds that they live."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Join(Step):
    """Bring a host in; workers come in at once."""

    host: Host
    manager: bool

    @property
    def batch(self) -> object:
        """Managers one by one: each is a vote more that must be counted."""
        return None if self.manager else type(self)


@dataclass(frozen=True, slots=True)
class Promote(Step):
    """Make a worker a manager."""

    node: str


@dataclass(frozen=True, slots=True)
class Forget(Step):
    """Strike a node off that is gone."""

    node: str


@dataclass(frozen=True, slots=True)
class Label(Step):
    """Set a node's labels; `host` is the inventory's name, `node` its ID where it has one yet."""

    host: str
    node: str | None
    labels: Labels


@dataclass(frozen=True, slots=True)
class AwaitEnd(Step):
    """Wait until no container of a service runs on a host any more."""

    host: str
    service: str


@dataclass(frozen=True, slots=True)
class DeployStack(Step):
    """Deploy a stack from a file of the tree; `variables` say which secrets it is to use."""

    stack: str
    file: str
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveStack(Step):
    """Remove a stack, and wait until it is gone."""

    stack: str


@dataclass(frozen=True, slots=True)
class Revive(Step):
    """Start the tasks of a stack again that Swarm no longer restarts; the others go on."""

    stack: str


@dataclass(frozen=True, slots=True)
class AwaitGpus(Step):
    """Wait until nobody but a `stack` has any of some GPUs any more."""

    stack: str
    gpus: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MakeSecret(Step):
    """Make a secret of a job, whose value no step holds."""

    job: str
    name: str


@dataclass(frozen=True, slots=True)
class ForgetCheckpoints(Step):
    """Delete a job's volume of checkpoints on a host; all hosts at once."""

    host: Host
    volume: str

    @property
    def batch(self) -> object:
        """All hosts together."""
        return type(self)


@dataclass(frozen=True, slots=True)
class ForgetHistory(Step):
    """Delete what the Swarm remembers of deployments."""


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """Take a host out; the `last` manager ends the Swarm."""

    host: Host
    manager: bool
    last: bool

    @property
    def batch(self) -> object:
        """Workers at once, managers one by one."""
        return None if self.manager else type(self)


def label_step(host: str, node: Node | None, wanted: Mapping[str, str | None]) -> Label | None:
    """Return the step to the wanted labels (None: without it), or None where they are there."""
    present = dict(node.labels) if node else {}
    change = tuple(
        (name, value)
        for name, value in wanted.items()
        if present.get(name, NOWHERE if value == NOWHERE else None) != value
    )
    if not change:
        return None
    said = ", ".join(
        f"{name}={value}" if value is not None else f"no {name}" for name, value in change
    )
    was = ", ".join(f"{name}={present[name]}" for name, _ in change if name in present)
    if node is None:
        cause = "a new node has none"
    else:
        cause = f"it has {was}" if was else "it has no such label"
    return Label(host, f"label {said}", cause, host, node.id if node else None, change)


def obsolete_labels(node: Node, wanted: Mapping[str, str], cluster: Cluster) -> dict[str, None]:
    """Return the labels of workloads that neither the plan nor a running stack knows.

    The value `none`, which `kit deploy` gives to what has no GPU any more, means the same as no
    label.
    """
    running = {service.owner for service in cluster.services}
    return {
        name: None
        for name, value in node.labels
        if name.startswith(JOB_LABEL)
        and value != NOWHERE
        and name not in wanted
        and name.removeprefix(JOB_LABEL) not in running
    }


def stack_cause(services: tuple[Service, ...], wanted: str) -> str | None:
    """Say why a stack must be deployed; None where its file has the `wanted` hash already."""
    if not services:
        return "it is not there"
    if any(service.label(FILE_LABEL) != wanted for service in services):
        return "its file has changed"
    return None
