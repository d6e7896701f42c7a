"""Waits until GPUs, names and volumes are released."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TypeVar

from kit.errors import KitError
from kit.hosts.docker import Docker, EngineError
from kit.model import Host
from kit.targets.swarm.observe import STACK_LABEL, see_cluster, see_tasks
from kit.targets.swarm.order import Gpu
from kit.targets.swarm.seen import Service

STACK_GONE = 120.0
"""Seconds within which what a removed stack had must be gone; its grace periods come on top."""
GPUS_FREE = 600.0
"""Seconds within which a GPU must have been let go of; a job's grace may be minutes."""
VOLUMES_FREE = 30.0
"""Seconds within which a container that has ended must let go of its volumes."""
REPLACED = 1.0
"""Seconds within which Swarm has made a task where it makes one at all."""
MOST_PASSES = 16
"""Failed tasks of a slot that are taken away to make room for a new one; Swarm keeps fewer."""
POLL = 0.5
"""Seconds between two looks."""
SERVICE_LABEL = "com.docker.swarm.service.name"
"""Docker's own label on the containers of a service."""
IN_USE = 409

Found = TypeVar("Found")


def _left(look: Callable[[], Found], seconds: float) -> Found:
    """Look until nothing is found; what is still there after so long otherwise."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(POLL)
    return found


def stack_gone(manager: Docker, stack: str) -> None:
    """Wait until nothing of a stack is left.

    Raises:
        KitError: Something is, after long.
    """
    label = {"label": [f"{STACK_LABEL}={stack}"]}

    def rest() -> bool:
        networks = manager.get("/networks", filters=label)
        return bool(networks) or _living_tasks(manager, label)

    if _left(rest, STACK_GONE):
        said = f"tasks of {stack} are still there after {STACK_GONE:.0f} s"
        raise KitError(said, f"see them: docker stack ps {stack}")


def _living_tasks(manager: Docker, filters: dict[str, list[str]]) -> bool:
    """Whether tasks are there; those of a node that is down go when it is back."""
    nodes = manager.get("/nodes")
    ready = {node["ID"] for node in nodes if node["Status"]["State"] == "ready"}
    tasks = manager.get("/tasks", filters=filters)
    return any(task.get("NodeID", "") in {"", *ready} for task in tasks)


def service_ended(host: Host, service: str) -> None:
    """Ask the host itself: of a task that it has rejected, Swarm tells nothing more.

    Raises:
        KitError: The host cannot be reached, or the container is still there after long.
    """
    label = {"label": [f"{SERVICE_LABEL}={service}"]}
    with closing(Docker.of(host)) as docker:
        if _left(lambda: docker.get("/containers/json", filters=label), GPUS_FREE):
            said = f"{host.name}: {service} has not ended within {GPUS_FREE:.0f} s"
            raise KitError(said, f"see it: docker ps on {host.name}")


def revive(manager: Docker, stack: str) -> None:
    """Start those tasks of a stack again whose restarts are used up.

    Raises:
        KitError: The managers cannot be reached, or do not make new tasks.
    """
    for service in see_cluster(manager).stack(stack):
        passes = 0
        while gone := _given_up(manager, service):
            if passes == MOST_PASSES:
                said = f"Swarm makes no new tasks for {service.name}"
                raise KitError(said, f"see them: docker service ps {service.name}")
            _replace(manager, service, gone)
            passes += 1


def _given_up(manager: Docker, service: Service) -> list[str]:
    return _left(lambda: [each.id for each in see_cluster(manager).given_up(service)], REPLACED)


def _replace(manager: Docker, service: Service, gone: Collection[str]) -> None:
    """Make room for a new task where one has failed for good.

    Swarm keeps such a task in its slot. With fewer replicas it drops those that do not run first,
    and with more again it fills the slot, unless the task before in it has no restarts left either
    (swarmkit, manager/orchestrator/replicated/services.go and restart/restart.go).
    """
    _scale(manager, service.name, service.replicas - len(gone))
    if _left(lambda: [each.id for each in see_tasks(manager) if each.id in gone], STACK_GONE):
        said = f"failed tasks of {service.name} do not go"
        raise KitError(said, f"see them: docker service ps {service.name}")
    _scale(manager, service.name, service.replicas)


def _scale(manager: Docker, service: str, replicas: int) -> None:
    number = f"{service}={replicas}"
    manager.command(f"scale {number}", "service", "scale", "--detach", number)


def gpus_free(manager: Docker, gpus: Collection[Gpu], stack: str) -> None:
    """Wait for GPUs that others than the stack have; they save a last checkpoint first.

    Raises:
        KitError: They are still held after long.
    """

    def held() -> list[tuple[Gpu, str]]:
        holders = see_cluster(manager).holders()
        return sorted((gpu, who) for gpu, who in holders.items() if gpu in gpus and who != stack)

    if left := _left(held, GPUS_FREE):
        who = ", ".join(f"{gpu} of {host} by {stack}" for (host, gpu), stack in left)
        raise KitError(f"still held after {GPUS_FREE:.0f} s: {who}", "see kit status")


def delete_volume(host: Host, name: str) -> None:
    """Delete a volume; the container that used it goes a moment after its task.

    Raises:
        KitError: The host cannot be reached, or it is still in use after long.
    """
    with closing(Docker.of(host)) as docker:

        def in_use() -> EngineError | None:
            known = {volume["Name"] for volume in docker.get("/volumes")["Volumes"] or ()}
            try:
                if name in known:
                    docker.request("DELETE", f"/volumes/{name}")
            except EngineError as error:
                if error.status != IN_USE:
                    raise
                return error
            return None

        if error := _left(in_use, VOLUMES_FREE):
            raise error
