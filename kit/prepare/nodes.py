"""Nodes of the Swarm around a restart: drained before, active again after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kit.errors import KitError
from kit.hosts.docker import Docker, EngineError
from kit.model import Host

OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})
"""States of a task that has ended (moby, api/types/swarm/task.go)."""
DRAIN = 900.0
"""The most seconds until all tasks have ended: a training saves a last checkpoint."""
RETURN = 120.0
"""The most seconds until a node is ready after its engine was restarted."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host as a node of the Swarm."""

    host: Host
    id: str


def node_of(host: Host) -> Node | None:
    """Return the host's node; None if it is in no Swarm.

    Raises:
        KitError: Its engine cannot be reached.
    """
    docker = Docker.of(host)
    try:
        swarm = docker.get("/info")["Swarm"]
    finally:
        docker.close()
    return Node(host, swarm["NodeID"]) if swarm["LocalNodeState"] == "active" else None


def drain(manager: Docker, node: Node) -> bool:
    """Drain an active node and wait until its tasks have ended; return False if it was not active.

    Raises:
        KitError: Tasks still run.
    """
    if manager.get(f"/nodes/{node.id}")["Spec"]["Availability"] != "active":
        return False
    set_availability(manager, node, "drain")
    _wait(lambda: not _tasks(manager, node), DRAIN, f"{node.host.name}: its tasks do not end")
    return True


def wait_until_ready(manager: Docker, node: Node) -> None:
    """Wait until a node is ready.

    Raises:
        KitError: It is not; the message says how to make it active later.
    """
    name = node.host.name

    def ready() -> bool:
        try:
            return bool(manager.get(f"/nodes/{node.id}")["Status"]["State"] == "ready")
        except KitError:
            return False  # This manager's own engine restarts, or there is no leader for a moment.

    _wait(ready, RETURN, f"{name}: it has not come back to the Swarm")


def set_availability(manager: Docker, node: Node, availability: str) -> None:
    """Set a node's availability: `active` or `drain`.

    Raises:
        KitError: The manager cannot be reached, or rejects it.
    """
    while True:
        seen = manager.get(f"/nodes/{node.id}")
        body = seen["Spec"] | {"Availability": availability}
        try:
            version = str(seen["Version"]["Index"])
            manager.post(f"/nodes/{node.id}/update", body, version=version)
        except EngineError as error:
            if "out of sequence" not in error.message:
                raise
        else:
            return


def _tasks(manager: Docker, node: Node) -> list[str]:
    tasks = manager.get("/tasks", filters={"node": [node.id]})
    return [task["ID"] for task in tasks if task["Status"]["State"] not in OVER]


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise KitError(f"{what} within {seconds:.0f} s")
        time.sleep(0.5)
