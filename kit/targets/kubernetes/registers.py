"""The lock, the history, and the final status of workloads, in ConfigMaps of the namespace.

One ConfigMap is the lock: its name can exist only once. Another one has the history and the final
status, which outlive the workloads: for `kit history`, and `kit resume` after `kit stop`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from kit.errors import KitError
from kit.runtime.history import Deployment, LockHolder, read_deployment, this_process
from kit.runtime.status import JobStatus, status_from_json, status_to_json
from kit.targets.kubernetes.errors import KubectlError
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.names import COMPONENT, MANAGED_BY, MANAGER, PART_OF

KEPT = 50
"""The number of deployments in the history."""


class Registers:
    """The data that kit stores about a cluster in its namespace."""

    def __init__(self, kubectl: Kubectl, cluster: str) -> None:
        self._kubectl = kubectl
        self._labels = {PART_OF: cluster, MANAGED_BY: MANAGER, COMPONENT: "register"}
        self._name = f"kit-{cluster}"
        self._lock = f"kit-{cluster}-lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock against other deploys.

        Raises:
            KitError: Another deploy holds it; the message names its user.
        """
        holder = {"holder": json.dumps(asdict(this_process()))}
        try:
            self._kubectl.create(self._document(self._lock, holder))
        except KubectlError as error:
            if not error.exists:
                raise
            raise self._held() from None
        try:
            yield
        finally:
            if self._data(self._lock) == holder:  # Another deploy may have broken the lock.
                self.break_lock()

    def _held(self) -> KitError:
        data = self._data(self._lock)
        if "holder" not in data:  # It was just released.
            return KitError("somebody else was deploying a moment ago", "try again")
        holder = LockHolder(**json.loads(data["holder"]))
        return holder.refusal(f"the ConfigMap {self._lock}")

    def break_lock(self) -> None:
        """Remove the lock of any holder."""
        self._kubectl.run("delete", "configmap", self._lock, "--ignore-not-found")

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded deployments, the newest first."""
        return tuple(map(read_deployment, json.loads(self._data(self._name).get("history", "[]"))))

    def statuses(self) -> dict[str, JobStatus]:
        """Return the final status of stopped workloads by name."""
        found = {}
        for name, content in json.loads(self._data(self._name).get("ended", "{}")).items():
            with suppress(ValueError, KeyError, TypeError):  # Another version of kit wrote it.
                found[name] = status_from_json(content)
        return found

    def record_deployment(self, deployment: Deployment) -> None:
        """Record a deployment, and delete the former final status of the workload."""
        data = self._data(self._name)
        history = [asdict(deployment), *json.loads(data.get("history", "[]"))][:KEPT]
        ended = json.loads(data.get("ended", "{}"))
        ended.pop(deployment.job, None)
        self._write(history, ended)

    def record_status(self, status: JobStatus) -> None:
        """Record the final status of a workload, whose lines are deleted with its pods."""
        data = self._data(self._name)
        ended = json.loads(data.get("ended", "{}")) | {status.job: status_to_json(status)}
        self._write(json.loads(data.get("history", "[]")), ended)

    def _write(self, history: list[dict[str, Any]], ended: dict[str, Any]) -> None:
        data = {"history": json.dumps(history), "ended": json.dumps(ended)}
        words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={MANAGER}")
        document = self._document(self._name, data)
        self._kubectl.run(*words, "--filename=-", stdin=json.dumps(document))

    def _document(self, name: str, data: Mapping[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": self._labels},
            "data": dict(data),
        }

    def _data(self, name: str) -> dict[str, str]:
        try:
            return dict(self._kubectl.read("configmap", name).get("data") or {})
        except KubectlError as error:
            if error.missing:
                return {}
            raise
