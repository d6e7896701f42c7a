"""A stack's file as its template prints it: services, and what they refer to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kit.plan.types import Volume
from kit.plan.work import Plan
from kit.targets.swarm.labels import HOST_LABEL, constraint
from kit.targets.swarm.names import checkpoints_alias, key_name, metrics_alias, network_name
from kit.workload.settings import Config, Environment, Net, Port, Symbol, Variable, Word
from kit.workload.types import Kind, Part, Role, Workload
from trainer.contract.bearer import KEY

HOST = "{{.Node.Hostname}}"
"""A placeholder that Swarm replaces for each task."""
EMPTY = '{{""}}'
"""A placeholder for an empty value: for a plain empty value, `docker stack deploy` would use the
variable of that name from its own environment, for example a proxy with a password."""
OVERLAY = "training"
"""The key of the overlay network in the files."""
HOST_NETWORK = ("host", "host")
BRIDGE = ("bridge", "bridge")


@dataclass(frozen=True, slots=True)
class Service:
    """A Swarm service: a part, and the values that only Swarm needs.

    `environment` is without the variables of the services that share their body. `network` is the
    key of its network, `aliases` are its names there. `published` are the ports that hosts publish.
    """

    part: Part
    constraints: tuple[str, ...]
    environment: Environment
    network: str
    aliases: tuple[str, ...] = ()
    published: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """The values of a stack's file.

    `labels` are those of every service. All services that work, of which `shared` is the first,
    have its body and its `environment`. `networks`, `secrets` and `volumes` are what the services
    refer to, by their keys in the file; networks and secrets exist already. `after_platform`: the
    platform must be deployed before.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    services: tuple[Service, ...]
    networks: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...] = ()
    volumes: tuple[Volume, ...] = ()
    shared: Service | None = None
    workload: Workload | None = None
    after_platform: bool = False
    key: str = ""

    @property
    def first(self) -> Part:
        """The part whose restarts and updates apply to all services without their own."""
        return (self.shared or self.services[0]).part


def service_of(
    plan: Plan,
    part: Part,
    constraints: Sequence[str],
    aliases: tuple[str, ...] = (),
    variables: Environment | None = None,
) -> Service:
    """Return the service of a part; `variables` are those to print, by default all of the part."""
    network = network_of(plan, part)
    return Service(
        part=part,
        constraints=tuple(constraints),
        environment=written(part, part.environment if variables is None else variables),
        network=network[0],
        aliases=aliases,
        published=() if network == HOST_NETWORK else tuple(p for p in part.ports if p.public),
    )


def network_of(plan: Plan, part: Part) -> tuple[str, str]:
    """Return the key and the name of a part's network."""
    if part.network is Net.ALONE:
        return BRIDGE
    if part.network is Net.HOST or plan.network.driver == "host":
        return HOST_NETWORK
    return OVERLAY, network_name(plan)


def networks_of(plan: Plan, parts: Iterable[Part]) -> tuple[tuple[str, str], ...]:
    """Return the networks of these parts, each once."""
    return tuple(dict.fromkeys(network_of(plan, part) for part in parts))


def stack_of(plan: Plan, workload: Workload, *, after_platform: bool) -> Stack:
    """Return the values of a workload's file; `after_platform`: the platform comes first."""
    first = workload.working[0]
    common = tuple(each for each in first.environment if not each.own)
    # The rendezvous comes first, because hosts wait for it.
    parts = sorted(workload.parts, key=lambda part: part.role is not Role.RENDEZVOUS)
    secrets = [
        (each.name, f"{workload.stack}-{each.name}-${{KIT_SECRET_{each.name}:-by-hand}}")
        for each in workload.secrets
    ]
    return Stack(
        name=workload.stack,
        labels=(
            (f"kit.{workload.kind}", workload.name),
            ("kit.inventory-hash", workload.inventory_hash),
            ("kit.job-hash", workload.job_hash),
            *workload.queue_labels,
        ),
        services=tuple(_service(plan, workload, part) for part in parts),
        shared=service_of(plan, first, (), _aliases(plan, workload, first), common),
        networks=networks_of(plan, workload.parts),
        secrets=(*secrets, *([(KEY, key_name(plan.cluster))] if workload.keyed else ())),
        volumes=workload.volumes,
        workload=workload,
        after_platform=after_platform,
        key=key_name(plan.cluster) if workload.keyed else "",
    )


def _service(plan: Plan, workload: Workload, part: Part) -> Service:
    own = tuple(each for each in part.environment if each.own) if part.role.works else None
    return service_of(
        plan, part, [_constraint(workload, part)], _aliases(plan, workload, part), own
    )


def _aliases(plan: Plan, workload: Workload, part: Part) -> tuple[str, ...]:
    """Return the names of a part on the overlay that do not change with its hosts."""
    if network_of(plan, part) == HOST_NETWORK:
        return ()
    if part.role is Role.CHECKPOINTS:
        return (checkpoints_alias(workload.name),)
    measured = workload.kind is Kind.JOB and part.role.works and plan.monitoring
    return (metrics_alias(part.ports[0].number),) if measured and part.ports else ()


def _constraint(workload: Workload, part: Part) -> str:
    if part.role is Role.RENDEZVOUS and not workload.host_network:
        return "node.role == manager"
    if part.role in {Role.RENDEZVOUS, Role.PROXY}:
        return pinned_to(part)
    if part.role is Role.CHECKPOINTS:
        group = part.name.removeprefix(f"{Role.CHECKPOINTS}-")
        return constraint(workload.reads, f"{Role.TRAIN}-{group}")
    return constraint(workload.name, part.name)


def pinned_to(part: Part) -> str:
    """Return the constraint that places a part on its first host."""
    return f"node.labels.{HOST_LABEL} == {part.hosts[0].name}"


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
        first = next(iter(part.placements), None)
        return ",".join(gpu.id for gpu in first.gpus) if first and first.pinned else "all"
    assert isinstance(value, str)
    return value if isinstance(value, Word) else untemplated(value) or EMPTY


def untemplated(value: str) -> str:
    """Escape `{{` in a value, which Swarm would read as a placeholder."""
    return value.replace("{{", '{{"{{"}}')
