"""The stack of a workload, as its template prints it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kit.plan.work import Plan
from kit.targets.swarm.labels import HOST_LABEL, constraint
from kit.targets.swarm.names import checkpoints_alias, key_name, metrics_alias, network_name
from kit.workload.monitoring import metrics_port
from kit.workload.types import Config, Environment, Part, Role, Symbol, Variable, Word, Workload

HOST = "{{.Node.Hostname}}"
"""A placeholder that Swarm replaces for each task."""
EMPTY = '{{""}}'
"""A placeholder for an empty value: for a plain empty value, `docker stack deploy` would use the
variable of that name from its own environment, for example a proxy with a password."""


@dataclass(frozen=True, slots=True)
class Service:
    """A Swarm service: a part, its constraint, and the variables that other services lack."""

    part: Part
    constraint: str
    environment: Environment


@dataclass(frozen=True, slots=True)
class Stack:
    """The values of a stack's file.

    `key` is the secret with the cluster's key.
    `environment` is common to all services that train or answer. `network` is their external
    network, `alias` the common name of all checkpoint endpoints on it, `metrics_alias` of all
    containers that Prometheus finds by it, or "". `after_platform`: the
    platform must be deployed before.
    """

    workload: Workload
    environment: Environment
    services: tuple[Service, ...]
    helpers: tuple[Service, ...]
    proxies: tuple[Service, ...]
    network: str
    alias: str
    after_platform: bool
    metrics_alias: str
    key: str


def stack_of(plan: Plan, workload: Workload, *, after_platform: bool) -> Stack:
    """Return the values of a workload's file; `after_platform`: the platform comes first."""
    first = workload.working[0]
    port, overlay = metrics_port(workload), not workload.host_network
    return Stack(
        workload=workload,
        environment=written(first, (each for each in first.environment if not each.own)),
        services=tuple(_service(workload, part) for part in workload.working),
        helpers=tuple(
            _service(workload, part)
            for part in workload.parts
            if not part.role.works and part.role is not Role.PROXY
        ),
        proxies=tuple(
            _service(workload, part) for part in workload.parts if part.role is Role.PROXY
        ),
        network="host" if workload.host_network else network_name(plan),
        alias=checkpoints_alias(workload.name),
        after_platform=after_platform,
        metrics_alias=metrics_alias(port) if plan.monitoring and port and overlay else "",
        key=key_name(plan.cluster),
    )


def _service(workload: Workload, part: Part) -> Service:
    variables = part.environment
    if part.role.works:
        variables = tuple(each for each in variables if each.own)
    return Service(part, _constraint(workload, part), written(part, variables))


def _constraint(workload: Workload, part: Part) -> str:
    if part.role is Role.RENDEZVOUS:
        name = part.hosts[0].name
        pinned_to = f"node.labels.{HOST_LABEL} == {name}"
        return pinned_to if workload.host_network else "node.role == manager"
    if part.role is Role.PROXY:
        return f"node.labels.{HOST_LABEL} == {part.hosts[0].name}"
    if part.role is Role.CHECKPOINTS:
        group = part.name.removeprefix(f"{Role.CHECKPOINTS}-")
        return constraint(workload.reads, f"{Role.TRAIN}-{group}")
    return constraint(workload.name, part.name)


def configs_of(workload: Workload) -> tuple[Config, ...]:
    """Return the files of a stack; the parts that work share theirs."""
    others = (part for part in workload.parts if part.role is Role.PROXY)
    return (*workload.working[0].configs, *(each for part in others for each in part.configs))


def written(part: Part, variables: Iterable[Variable]) -> Environment:
    """Return variables with Swarm's placeholders escaped."""
    return tuple(
        Variable(each.name, _value(part, each.value), each.why, each.own) for each in variables
    )


def _value(part: Part, value: str | Symbol) -> str:
    if value is Symbol.HOST:
        return HOST
    if value is Symbol.GPUS:
        first = part.placements[0]
        return ",".join(gpu.id for gpu in first.gpus) if first.pinned else "all"
    assert isinstance(value, str)
    return value if isinstance(value, Word) else untemplated(value) or EMPTY


def untemplated(value: str) -> str:
    """Escape `{{` in a value, which Swarm would read as a placeholder."""
    return value.replace("{{", '{{"{{"}}')
