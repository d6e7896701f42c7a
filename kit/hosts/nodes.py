"""Changes of a Swarm's nodes, through one of its managers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker

Spec = dict[str, Any]
"""A node's specification in Docker's API: Role, Availability and Labels."""
PATIENCE = 60.0
"""Seconds in which the managers must elect a leader, and a new manager must be reachable."""
PAUSE = 0.5


def update_node(manager: Docker, node: str, change: Callable[[Spec], Spec]) -> None:
    """Change the specification of a node, by its id.

    It is repeated after a concurrent change, and while the managers have no leader, as for a moment
    when a manager joins or leaves.

    Raises:
        KitError: The manager cannot be reached, or rejects it.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            inspected = manager.get(f"/nodes/{node}")
            version = str(inspected["Version"]["Index"])
            manager.post(f"/nodes/{node}/update", change(inspected["Spec"]), version=version)
        except EngineError as error:
            leaderless = "leader" in error.message and time.monotonic() < deadline
            if not leaderless and "out of sequence" not in error.message:
                raise
            time.sleep(PAUSE if leaderless else 0.0)
        else:
            return


def promote(manager: Docker, node: str) -> None:
    """Make a node a manager, and wait until the others reach it: then they have a leader.

    Raises:
        KitError: The manager cannot be reached, rejects it, or does not reach the new one.
    """
    update_node(manager, node, lambda spec: spec | {"Role": "manager"})
    deadline = time.monotonic() + PATIENCE
    while not _reachable(manager, node):
        if time.monotonic() > deadline:
            what = f"{manager.name}: the new manager cannot be reached within {PATIENCE:.0f} s"
            raise KitError(what, "open 2377/tcp between the managers; see `kit doctor`")
        time.sleep(PAUSE)


def _reachable(manager: Docker, node: str) -> bool:
    try:
        status = manager.get(f"/nodes/{node}").get("ManagerStatus") or {}
    except EngineError as error:
        if "leader" not in error.message:
            raise
        return False
    return status.get("Reachability") == "reachable"
