"""Nodes of the Swarm: they are drained before a restart, and made active after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.hosts.nodes import update_node
from kit.model import Host

OVER = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})
"""States of a task that has ended (moby, api/types/swarm/task.go)."""
DRAIN = 900.0
"""The most seconds until all tasks have ended: a training saves a last checkpoint."""
RETURN = 120.0
"""The most seconds until a node is ready after its engine was restarted."""
LOST = 10.0
"""As above, if its engine failed to start: the old configuration may have brought it back."""
NOTICED = 3.0
"""Seconds in which a manager calls a node ready that has registered."""
MISSED = """\
look there: journalctl -u docker
if Docker runs there, the manager has missed its return: systemctl restart docker"""


@dataclass(frozen=True, slots=True)
class Node:
    """A host as a node of the Swarm."""

    host: Host
    id: str


def node_of(host: Host) -> Node:
    """Return the host's node in its Swarm.

    Raises:
        KitError: Its engine cannot be reached.
    """
    docker = Docker.of(host)
    try:
        return Node(host, docker.get("/info")["Swarm"]["NodeID"])
    finally:
        docker.close()


def drain(manager: Docker, node: Node) -> bool:
    """Drain an active node and wait until its tasks have ended; return False if it was not active.

    Raises:
        KitError: Tasks still run.
    """
    if manager.get(f"/nodes/{node.id}")["Spec"]["Availability"] != "active":
        return False
    set_availability(manager, node, "drain")
    try:
        _wait(lambda: not _tasks(manager, node), DRAIN)
    except TimeoutError:
        what = f"{node.host.name}: its tasks have not ended within {DRAIN:.0f} s"
        raise KitError(what, "it is drained, and its engine was not restarted") from None
    return True


def ready_nodes(manager: Docker) -> dict[str, str]:
    """Return the hostnames of all nodes that are ready, by ID."""
    nodes = (node for node in manager.get("/nodes") if node["Status"]["State"] == "ready")
    return {node["ID"]: node["Description"]["Hostname"] for node in nodes}


def wait_until_ready(manager: Docker, nodes: Mapping[str, str], seconds: float) -> None:
    """Wait until these nodes are ready: without a manager, all of them are lost for a moment.

    Raises:
        KitError: Some are not.
    """
    lost = dict(nodes)

    def ready() -> bool:
        with suppress(KitError):  # The manager's own engine restarts, or there is no leader yet.
            for node in ready_nodes(manager):
                lost.pop(node, None)
        return not lost

    try:
        _wait(ready, seconds)
    except TimeoutError:
        names = ", ".join(lost.values())
        what = f"{names}: not back in the Swarm within {seconds:.0f} s: {_state(manager, lost)}"
        raise KitError(what, MISSED) from None


def _state(manager: Docker, lost: Mapping[str, str]) -> str:
    """Return what the manager reports of nodes, or why it reports nothing."""
    try:
        nodes = {node["ID"]: node["Status"] for node in manager.get("/nodes")}
    except KitError as error:
        return error.message
    found = (nodes.get(node, {"State": "removed"}) for node in lost)
    states = (f"{each['State']}, {each.get('Message', '')}".rstrip(", ") for each in found)
    return f"{manager.name} reports {'; '.join(states)}"


def is_missed(manager: Docker, node: Node) -> bool:
    """Whether a manager calls a node down whose engine is in the Swarm.

    It stays so until the engine restarts: the node has registered while its last session expired,
    three heartbeats after the engine's end (swarmkit, manager/dispatcher, register; seen with
    Docker 26.1).
    """

    def found() -> bool:
        try:
            return bool(manager.get(f"/nodes/{node.id}")["Status"]["State"] != "down")
        except KitError:
            return True  # It was the manager's own engine.

    try:
        _wait(found, NOTICED)
    except TimeoutError:
        return True
    return False


def set_availability(manager: Docker, node: Node, availability: str) -> None:
    """Set a node's availability: `active` or `drain`.

    Raises:
        KitError: The manager cannot be reached, or rejects it.
    """
    update_node(manager, node.id, lambda spec: spec | {"Availability": availability})


def _tasks(manager: Docker, node: Node) -> list[str]:
    tasks = manager.get("/tasks", filters={"node": [node.id]})
    return [task["ID"] for task in tasks if task["Status"]["State"] not in OVER]


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.5)
