"""The lock, the history, and the final status of workloads, stored in the Swarm as configs.

Only one config can have a name, which makes it a lock that outlives the operator's machine and
shows its holder. The managers replicate configs, they survive restarts, and `docker config ls`
lists them. kit keeps no other state: the labels of services show what runs.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.runtime.history import Deployment, LockHolder, read_deployment, this_process
from kit.runtime.status import JobStatus, status_from_json, status_to_json

LOCK = "kit-lock"
HISTORY = "kit-history"
ENDED = "kit-ended"
KEPT = 50
"""The number of deployments in the history."""
CONFLICT = 409


@contextmanager
def locked(manager: Docker) -> Iterator[None]:
    """Hold the lock against other deploys.

    Raises:
        KitError: Another deploy holds it; the message names its user.
    """
    try:
        config = _create(manager, LOCK, asdict(this_process()))
    except EngineError as error:
        if error.status != CONFLICT:
            raise
        raise _held(manager) from None
    try:
        yield
    finally:
        with suppress(EngineError):  # Another deploy has broken the lock.
            manager.request("DELETE", f"/configs/{config}")


def _held(manager: Docker) -> KitError:
    holder = next(iter(_contents(manager, LOCK)), None)
    if holder is None:  # It was just released.
        return KitError("somebody else was deploying a moment ago", "try again")
    return LockHolder(**holder).refusal(f"the config {LOCK} of the Swarm")


def break_lock(manager: Docker) -> None:
    """Remove the lock of any holder."""
    for config in _configs(manager, LOCK):
        manager.request("DELETE", f"/configs/{config['ID']}")


def record_deployment(manager: Docker, deployment: Deployment) -> None:
    """Record a deployment; keep only the newest 50."""
    _create(manager, f"{HISTORY}-{deployment.time:.3f}-{deployment.job}"[:64], asdict(deployment))
    known = sorted(_configs(manager, HISTORY), key=lambda config: config["CreatedAt"])
    for config in known[:-KEPT]:
        manager.request("DELETE", f"/configs/{config['ID']}")


def history(manager: Docker) -> tuple[Deployment, ...]:
    """Return the recorded deployments, the newest first."""
    deployments = [read_deployment(content) for content in _contents(manager, HISTORY)]
    return tuple(sorted(deployments, key=lambda deployment: -deployment.time))


def record_status(manager: Docker, status: JobStatus) -> None:
    """Record the final status of a workload; Swarm deletes its logs with the stack."""
    delete_status(manager, status.job)
    name = f"{ENDED}-{time.time():.3f}-{status.job}"[:64]
    _create(manager, name, status_to_json(status))


def recorded_statuses(manager: Docker) -> tuple[JobStatus, ...]:
    """Return the final status of stopped workloads."""
    statuses = []
    for content in _contents(manager, ENDED):
        with suppress(ValueError, KeyError, TypeError):  # Another version of kit wrote it.
            statuses.append(status_from_json(content))
    return tuple(statuses)


def delete_status(manager: Docker, name: str) -> None:
    """Delete the final status of a workload that starts again."""
    for config in _configs(manager, ENDED):
        if json.loads(base64.b64decode(config["Spec"]["Data"])).get("job") == name:
            manager.request("DELETE", f"/configs/{config['ID']}")


def delete_records(manager: Docker) -> None:
    """Delete the history and all final statuses."""
    for config in (*_configs(manager, HISTORY), *_configs(manager, ENDED)):
        manager.request("DELETE", f"/configs/{config['ID']}")


def _create(manager: Docker, name: str, content: dict[str, Any]) -> str:
    kind = next(kind for kind in (LOCK, HISTORY, ENDED) if name.startswith(kind))
    data = base64.b64encode(json.dumps(content).encode()).decode()
    config = manager.post("/configs/create", {"Name": name, "Labels": {kind: ""}, "Data": data})
    return str(config["ID"])


def _configs(manager: Docker, kind: str) -> list[dict[str, Any]]:
    return list(manager.get("/configs", filters={"label": [kind]}))


def _contents(manager: Docker, kind: str) -> Iterator[dict[str, Any]]:
    for config in _configs(manager, kind):
        yield json.loads(base64.b64decode(config["Spec"]["Data"]))
