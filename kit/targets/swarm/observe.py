"""Queries of the engines and their Swarm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.model import Host, resource_of
from kit.runtime.streams import seconds
from kit.targets.swarm.labels import HOST_LABEL
from kit.targets.swarm.state import VISIBLE, Cluster, Member, Node, Service, Task

GPU_KIND = "kit_gpu"
"""The kind of generic resource in daemon.json for a host's GPUs."""
STACK_LABEL = "com.docker.stack.namespace"
"""Docker's label on all objects of a stack."""


def first_answer(managers: Sequence[Host]) -> tuple[Host, Docker]:
    """Return the first host that answers as a manager.

    Raises:
        KitError: None does; the message has the answer of each.
    """
    answers = []
    for host in managers:
        docker = Docker.of(host)
        try:
            if docker.get("/info")["Swarm"]["ControlAvailable"]:
                return host, docker
            answers.append(f"{host.name}: is not a manager of a swarm; kit swarm up")
        except KitError as error:
            answers.append(str(error))
        docker.close()
    names = ", ".join(host.name for host in managers)
    alone = (
        f"{names} is the only manager" if len(managers) == 1 else f"no manager ({names}) answers"
    )
    rest = "without one kit can neither see nor change anything; running tasks continue"
    raise KitError("\n".join(answers), f"{alone}: {rest}; bring it back")


def observe_member(host: Host) -> Member:
    """Query a host's engine.

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


def observe_cluster(manager: Docker) -> Cluster:
    """Query a manager for the state of the Swarm.

    Raises:
        KitError: It cannot be reached, or is not a manager.
    """
    swarm, networks = manager.get("/swarm"), manager.get("/networks")
    services = tuple(sorted(map(_service, manager.get("/services")), key=lambda s: s.name))
    return Cluster(
        id=swarm["ID"],
        heartbeat=swarm["Spec"]["Dispatcher"]["HeartbeatPeriod"] / 1e9,
        nodes=tuple(sorted(map(_node, manager.get("/nodes")), key=lambda node: node.name)),
        services=services,
        tasks=observe_tasks(manager),
        secrets=tuple(secret["Spec"]["Name"] for secret in manager.get("/secrets")),
        subnets=tuple(_subnets(networks)),
        networks=tuple(_network_names(manager, services, networks)),
    )


def _network_names(
    manager: Docker, services: Iterable[Service], known: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield IDs and names of the services' networks; the list lacks Swarm's own ID of `host`."""
    names = {network["Id"]: network["Name"] for network in known}
    used = {
        network["Target"]
        for service in services
        for network in service.spec["TaskTemplate"].get("Networks") or ()
    }
    for each in sorted(used):
        yield each, names.get(each) or manager.get(f"/networks/{each}")["Name"]


def _subnets(networks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for network in (each for each in networks if each["Scope"] == "swarm"):
        for config in network["IPAM"]["Config"] or ():
            if subnet := config.get("Subnet"):
                yield network["Name"], subnet


def observe_tasks(manager: Docker) -> tuple[Task, ...]:
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
        down=node["Status"]["State"] == "down",
    )


def _service(service: dict[str, Any]) -> Service:
    spec = service["Spec"]
    labels, template = spec.get("Labels") or {}, spec["TaskTemplate"]
    container = template["ContainerSpec"]
    variables = (each.partition("=")[::2] for each in container.get("Env") or ())
    update = service.get("UpdateStatus") or {}
    return Service(
        id=service["ID"],
        name=spec["Name"],
        stack=labels.get(STACK_LABEL, ""),
        labels=tuple(sorted(labels.items())),
        replicas=spec["Mode"].get("Replicated", {}).get("Replicas", 0),
        image=container["Image"],
        gpus=_reserved(template),
        environment=tuple((name, value) for name, value in variables),
        secrets=tuple(each["SecretName"] for each in container.get("Secrets") or ()),
        constraints=tuple(template.get("Placement", {}).get("Constraints") or ()),
        changed=seconds(service["UpdatedAt"]),
        update=update.get("State", ""),
        update_message=update.get("Message", ""),
        made_of=_made_of(template),
        spec=spec,
    )


def _made_of(template: Mapping[str, Any]) -> str:
    """Return a hash that distinguishes a task from the tasks of its service before a change."""
    parts = [template.get("ContainerSpec"), template.get("ForceUpdate", 0)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _reserved(template: Mapping[str, Any]) -> int:
    """Return the number of GPUs that a task's specification reserves."""
    resources = template.get("Resources", {}).get("Reservations", {}).get("GenericResources") or ()
    counts = (each.get("DiscreteResourceSpec", {}) for each in resources)
    return sum(each["Value"] for each in counts if each.get("Kind") == GPU_KIND)


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
        gpus=_reserved(task["Spec"]),
        devices=_offered(visible),
        created=seconds(task["CreatedAt"]),
        at=seconds(status["Timestamp"]),
        made_of=_made_of(task["Spec"]),
    )


def _offered(visible: str) -> tuple[str, ...]:
    """Return the names of a container's GPUs in Swarm."""
    if visible in {"", "void", "none"}:
        return ()
    return tuple(map(resource_of, visible.split(",")))
