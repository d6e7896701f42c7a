"""Waiting until GPUs, names and volumes are released."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TypeVar

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.model import Host
from kit.runtime.health import fault
from kit.targets.swarm.containers import SERVICE_LABEL
from kit.targets.swarm.observe import STACK_LABEL, observe_cluster, observe_tasks
from kit.targets.swarm.order import Gpu
from kit.targets.swarm.state import Cluster, Service
from kit.targets.swarm.steps import UpdateService

STACK_GONE = 120.0
"""Seconds until a removed stack must be gone, after the grace periods of its tasks."""
GPUS_FREE = 600.0
"""Seconds until a GPU must be released; a job's grace period may be minutes."""
VOLUMES_FREE = 30.0
"""Seconds until an ended container must release its volumes."""
NOTICED = 3.0
"""Seconds in which a proxy notices that a host answers."""
NOT_UPDATED = "the other hosts still answer with the version before: see `kit logs`"
REPLACED = 1.0
"""Seconds that Swarm needs to create a task."""
MOST_PASSES = 16
"""Failed tasks that are removed from a slot to make room for a new one; Swarm keeps fewer."""
POLL = 0.5
"""Seconds between two checks."""
IN_USE = 409

ResultT = TypeVar("ResultT")


def _wait_until_empty(look: Callable[[], ResultT], seconds: float) -> ResultT:
    """Call `look` until it returns nothing or the time is over; return its last result."""
    deadline = time.monotonic() + seconds
    while (result := look()) and time.monotonic() < deadline:
        time.sleep(POLL)
    return result


def tasks_of_service(manager: Docker, step: UpdateService) -> set[str]:
    """Return the tasks of the step's service."""
    cluster = observe_cluster(manager)
    return {each.id for each in cluster.tasks_of(_services(cluster, step))}


def _services(cluster: Cluster, step: UpdateService) -> list[Service]:
    """Return the step's service; none before it is deployed for the first time."""
    name = f"{step.stack}_{step.part}"
    return [each for each in cluster.services if each.name == name]


def service_ready(manager: Docker, step: UpdateService, before: set[str]) -> None:
    """Wait until a service's update has ended and its hosts answer, if there are others that do.

    Return soon if its tasks are those `before`: nothing in it has changed.

    Raises:
        KitError: Swarm has paused the update, or a host does not answer in time.
    """
    time.sleep(2 * REPLACED)
    if tasks_of_service(manager, step) == before:
        return

    def missing() -> str:
        [service] = _services(observe_cluster(manager), step)
        if service.update == "updating":
            return "its update has not ended"
        if service.update == "paused":
            raise KitError(f"{service.name}: {service.update_message}", NOT_UPDATED)
        if all(fault(url) for url in step.others):
            return ""
        faults = {url: fault(url) for url in step.urls}
        return "; ".join(f"{url}: {fault}" for url, fault in faults.items() if fault)

    if faults_left := _wait_until_empty(missing, step.timeout):
        what = f"{step.stack}_{step.part} does not answer after {step.timeout} s: {faults_left}"
        raise KitError(what, NOT_UPDATED)
    time.sleep(NOTICED)  # A proxy notices it.


def stack_gone(manager: Docker, stack: str) -> None:
    """Wait until a stack is removed completely.

    Raises:
        KitError: Parts of it remain.
    """
    label = {"label": [f"{STACK_LABEL}={stack}"]}

    def rest() -> bool:
        networks = manager.get("/networks", filters=label)
        return bool(networks) or _living_tasks(manager, label)

    if _wait_until_empty(rest, STACK_GONE):
        what = f"tasks of {stack} are still there after {STACK_GONE:.0f} s"
        raise KitError(what, f"see them: docker stack ps {stack}")


def _living_tasks(manager: Docker, filters: dict[str, list[str]]) -> bool:
    """Return whether there are tasks, without those on nodes that are down."""
    nodes = manager.get("/nodes")
    ready = {node["ID"] for node in nodes if node["Status"]["State"] == "ready"}
    tasks = manager.get("/tasks", filters=filters)
    return any(task.get("NodeID", "") in {"", *ready} for task in tasks)


def service_ended(host: Host, service: str) -> None:
    """Wait until a service has no container on a host; query the host, as Swarm drops the state.

    Raises:
        KitError: The host cannot be reached, or the container remains.
    """
    label = {"label": [f"{SERVICE_LABEL}={service}"]}
    with closing(Docker.of(host)) as docker:
        if _wait_until_empty(lambda: docker.get("/containers/json", filters=label), GPUS_FREE):
            what = f"{host.name}: {service} has not ended within {GPUS_FREE:.0f} s"
            raise KitError(what, f"see it: docker ps on {host.name}")


def restart_tasks(manager: Docker, stack: str) -> None:
    """Restart the tasks of a stack whose restarts are used up.

    Raises:
        KitError: The managers cannot be reached, or create no new tasks.
    """
    for service in observe_cluster(manager).stack(stack):
        passes = 0
        while failed := _given_up(manager, service):
            if passes == MOST_PASSES:
                what = f"Swarm makes no new tasks for {service.name}"
                raise KitError(what, f"see them: docker service ps {service.name}")
            _replace(manager, service, failed)
            passes += 1


def _given_up(manager: Docker, service: Service) -> list[str]:
    return _wait_until_empty(
        lambda: [each.id for each in observe_cluster(manager).given_up(service)], REPLACED
    )


def _replace(manager: Docker, service: Service, failed: Collection[str]) -> None:
    """Remove the failed tasks of slots to make room for new ones.

    Swarm keeps such a task in its slot. Scaling down first drops tasks that do not run. Scaling up
    fills the slot again, unless the previous task in it has no restarts left either (swarmkit,
    manager/orchestrator/replicated/services.go and restart/restart.go).
    """
    _scale(manager, service.name, service.replicas - len(failed))
    if _wait_until_empty(
        lambda: [each.id for each in observe_tasks(manager) if each.id in failed], STACK_GONE
    ):
        what = f"failed tasks of {service.name} are not removed"
        raise KitError(what, f"see them: docker service ps {service.name}")
    _scale(manager, service.name, service.replicas)


def _scale(manager: Docker, service: str, replicas: int) -> None:
    number = f"{service}={replicas}"
    manager.command(f"scale {number}", "service", "scale", "--detach", number)


def gpus_free(manager: Docker, gpus: Collection[Gpu], stack: str) -> None:
    """Wait until others release the GPUs of a stack; they first save a last checkpoint.

    Raises:
        KitError: They are not released in time.
    """

    def held() -> list[tuple[Gpu, str]]:
        holders = observe_cluster(manager).holders()
        return sorted((gpu, who) for gpu, who in holders.items() if gpu in gpus and who != stack)

    if left := _wait_until_empty(held, GPUS_FREE):
        who = ", ".join(f"{gpu} of {host} by {stack}" for (host, gpu), stack in left)
        raise KitError(f"still held after {GPUS_FREE:.0f} s: {who}", "see kit status")


def delete_volume(host: Host, name: str) -> None:
    """Delete a volume; its container is removed shortly after the task.

    Raises:
        KitError: The host cannot be reached, or the volume stays in use.
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

        if error := _wait_until_empty(in_use, VOLUMES_FREE):
            raise error
