"""Who deploys now, and what was deployed: kept by the Swarm itself, as configs.

A config's name can be taken once, whoever asks: that makes a lock. The managers agree on it, it
survives their restarts, and `docker config ls` shows it.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from kit.docker import Docker, EngineError
from kit.engine import Deployment
from kit.errors import KitError
from kit.values import show_seconds

LOCK = "kit-lock"
HISTORY = "kit-history"
KEPT = 50
"""Deployments that are remembered."""
CONFLICT = 409


@contextmanager
def locked(manager: Docker) -> Iterator[None]:
    """Let nobody else deploy meanwhile.

    Raises:
        KitError: Somebody else does; it says who.
    """
    holder = {"by": f"{getpass.getuser()}@{socket.gethostname()}", "pid": os.getpid()}
    try:
        made = _create(manager, LOCK, holder | {"since": time.time()})
    except EngineError as error:
        if error.status != CONFLICT:
            raise
        raise _held(manager) from None
    try:
        yield
    finally:
        with suppress(EngineError):  # Somebody has broken it.
            manager.request("DELETE", f"/configs/{made}")


def _held(manager: Docker) -> KitError:
    holder = next(iter(_contents(manager, LOCK)), None)
    if holder is None:  # It was let go of a moment ago.
        return KitError("somebody else was deploying a moment ago", "try again")
    age = show_seconds(time.time() - holder["since"])
    return KitError(
        f"{holder['by']} (process {holder['pid']}) has been deploying for {age}",
        "wait for it; if it is gone for good, `kit deploy --break-lock`",
    )


def break_lock(manager: Docker) -> None:
    """Take the lock from whoever has it."""
    for config in _configs(manager, LOCK):
        manager.request("DELETE", f"/configs/{config['ID']}")


def write_down(manager: Docker, made: Deployment) -> None:
    """Remember a deployment; the oldest beyond the newest 50 are forgotten."""
    _create(manager, f"{HISTORY}-{made.time:.3f}-{made.job}"[:64], asdict(made))
    known = sorted(_configs(manager, HISTORY), key=lambda config: config["CreatedAt"])
    for config in known[:-KEPT]:
        manager.request("DELETE", f"/configs/{config['ID']}")


def history(manager: Docker) -> tuple[Deployment, ...]:
    """Return the deployments that are remembered, the newest first."""
    found = [Deployment(**content) for content in _contents(manager, HISTORY)]
    return tuple(sorted(found, key=lambda deployment: -deployment.time))


def forget_all(manager: Docker) -> None:
    """Forget what was deployed."""
    for config in _configs(manager, HISTORY):
        manager.request("DELETE", f"/configs/{config['ID']}")


def _create(manager: Docker, name: str, content: dict[str, Any]) -> str:
    kind = name if name == LOCK else HISTORY
    data = base64.b64encode(json.dumps(content).encode()).decode()
    made = manager.post("/configs/create", {"Name": name, "Labels": {kind: ""}, "Data": data})
    return str(made["ID"])


def _configs(manager: Docker, kind: str) -> list[dict[str, Any]]:
    return list(manager.get("/configs", filters={"label": [kind]}))


def _contents(manager: Docker, kind: str) -> Iterator[dict[str, Any]]:
    for config in _configs(manager, kind):
        yield json.loads(base64.b64decode(config["Spec"]["Data"]))
