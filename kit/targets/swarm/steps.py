"""The steps on a Swarm, each with its parameters. Pure values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kit.model import Host
from kit.runtime.steps import Step
from kit.targets.swarm.labels import JOB_LABEL, NOWHERE
from kit.targets.swarm.names import key_name
from kit.targets.swarm.state import FILE_LABEL, Cluster, Node, Service

JOINED_LABEL = "kit.joined"
"""The label on nodes that kit added to the Swarm: `kit swarm down` removes only these."""

Labels = tuple[tuple[str, str | None], ...]
"""Names and values; None removes the label."""


@dataclass(frozen=True, slots=True)
class Init(Step):
    """Create a Swarm on a host."""

    host: Host


@dataclass(frozen=True, slots=True)
class SetHeartbeat(Step):
    """Set the interval of the nodes' heartbeats, in seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Join(Step):
    """Add a host to the Swarm; workers are added concurrently."""

    host: Host
    manager: bool

    @property
    def batch(self) -> object:
        """Add managers one by one: each changes the majority."""
        return None if self.manager else type(self)


@dataclass(frozen=True, slots=True)
class Promote(Step):
    """Make a worker a manager."""

    node: str


@dataclass(frozen=True, slots=True)
class RemoveNode(Step):
    """Remove a node that is gone."""

    node: str


@dataclass(frozen=True, slots=True)
class Label(Step):
    """Set a node's labels; `host` is the inventory's name, `node` its ID if it has joined."""

    host: str
    node: str | None
    labels: Labels


@dataclass(frozen=True, slots=True)
class Claim(Step):
    """Record on a node, by its ID, which GPUs a workload claims: jobs of the queue leave them."""

    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AwaitEnd(Step):
    """Wait until a host runs no container of a service."""

    host: str
    service: str


@dataclass(frozen=True, slots=True)
class DeployStack(Step):
    """Deploy a stack from a file of the tree; `variables` select its secrets."""

    stack: str
    file: str
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateService(Step):
    """Deploy one service of a stack, and wait until its hosts answer at `urls`, `timeout` seconds.

    `part` is its name in the file. `others` are the URLs of the services that are updated next: if
    none of them answers, no host of the server answers, and waiting is useless.
    """

    stack: str
    file: str
    variables: tuple[tuple[str, str], ...]
    part: str
    urls: tuple[str, ...]
    others: tuple[str, ...]
    timeout: int


@dataclass(frozen=True, slots=True)
class RemoveStack(Step):
    """Remove a stack, and wait until it is gone."""

    stack: str


@dataclass(frozen=True, slots=True)
class RestartTasks(Step):
    """Restart the tasks of a stack whose restarts are used up; the others continue."""

    stack: str


@dataclass(frozen=True, slots=True)
class AwaitGpus(Step):
    """Wait until no other stack holds the GPUs."""

    stack: str
    gpus: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MakeSecret(Step):
    """Create a secret of a job. Steps do not contain its value."""

    job: str
    name: str


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints(Step):
    """Delete a job's volume of checkpoints on a host, on all hosts concurrently."""

    host: Host
    volume: str

    @property
    def batch(self) -> object:
        """All hosts run concurrently."""
        return type(self)


@dataclass(frozen=True, slots=True)
class DeleteHistory(Step):
    """Delete the Swarm's history of deployments."""


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """Remove a host from the Swarm; the `last` manager ends the Swarm."""

    host: Host
    manager: bool
    last: bool

    @property
    def batch(self) -> object:
        """Remove workers concurrently, managers one by one."""
        return None if self.manager else type(self)


def label_step(host: str, node: Node | None, wanted: Mapping[str, str | None]) -> Label | None:
    """Return the step that sets labels (None: removed), or None if they are set."""
    present = dict(node.labels) if node else {}
    change = tuple(
        (name, value)
        for name, value in wanted.items()
        if present.get(name, NOWHERE if value == NOWHERE else None) != value
    )
    if not change:
        return None
    labels = ", ".join(
        f"{name}={value}" if value is not None else f"no {name}" for name, value in change
    )
    was = ", ".join(f"{name}={present[name]}" for name, _ in change if name in present)
    if node is None:
        cause = "a new node has none"
    else:
        cause = f"it has {was}" if was else "it has no such label"
    return Label(host, f"label {labels}", cause, host, node.id if node else None, change)


def obsolete_labels(node: Node, wanted: Mapping[str, str], cluster: Cluster) -> dict[str, None]:
    """Return the labels of workloads that neither the plan nor a running stack has.

    The value `none`, which `kit deploy` sets for workloads without a GPU, means the same as no
    label.
    """
    return {
        name: None
        for name, value in node.labels
        if name.startswith(JOB_LABEL)
        and value != NOWHERE
        and name not in wanted
        and not cluster.of(name.removeprefix(JOB_LABEL))
    }


def key_step(cluster: str, present: Collection[str]) -> Iterator[MakeSecret]:
    """Yield the step that makes the cluster's key, unless it is among the secrets `present`."""
    name = key_name(cluster)
    if name not in present:
        why = "checkpoints and data sets are offered to those who have it"
        yield MakeSecret("swarm", f"make secret {name}", why, f"{cluster}-platform", name)


def stack_cause(services: tuple[Service, ...], wanted: str, by_hand: str = "") -> str | None:
    """Return the reason to deploy a stack, or None if it is what its file says.

    `wanted` is the file's hash, `by_hand` the changes by hand since its deploy.
    """
    if not services:
        return "it is not there"
    if any(service.label(FILE_LABEL) != wanted for service in services):
        return "its file has changed"
    return by_hand or None
