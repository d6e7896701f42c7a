"""Execution of the steps in Kubernetes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import singledispatchmethod

from kit.errors import KitError
from kit.runtime.steps import Step
from kit.targets.kubernetes.decide import Apply, DeleteClaim, EndJobs, MakeSecret, Prune, Remove
from kit.targets.kubernetes.errors import KubectlError
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.names import INSTANCE, MANAGED_BY, MANAGER, PART_OF, secret_of
from kit.targets.kubernetes.observe import APPLY, Objects, listed, observe, selector

POLL = 1.0
"""Seconds between two checks of pods that end."""
PATIENCE = 30.0
"""Seconds beyond the grace period. A pod of a dead node ends when the node is back."""
DELETED = (
    "jobs.batch,deployments.apps,services,configmaps,networkpolicies.networking.k8s.io,"
    "poddisruptionbudgets.policy"
)
"""The kinds that a stop removes by label, besides the Secret; the volume claim stays."""
WEBHOOKS = 120.0
"""Seconds for a controller to see a TrainingRuntime, and for its webhook to serve at all: right
after its installation, Kueue's took up to 100 s on a real cluster."""
APPLIED = 60.0
"""Seconds for the apply of a workload's objects, which webhooks of the cluster may check."""


class Executor:
    """Executes steps; `secrets` are the values by workload and name."""

    def __init__(
        self,
        kubectl: Kubectl,
        cluster: str,
        objects: Objects,
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._kubectl = kubectl
        self._cluster = cluster
        self._objects = objects
        self._secrets = secrets

    @singledispatchmethod
    def execute(self, step: Step) -> None:
        """Execute a step.

        Raises:
            KitError: It failed.
        """
        raise AssertionError(step)

    @execute.register
    def _(self, step: EndJobs) -> None:
        self.end_jobs(step)
        self.await_end(step.stack, step.grace)

    @execute.register
    def _(self, step: DeleteClaim) -> None:
        words = ("--ignore-not-found", "--wait=true", f"--timeout={PATIENCE:.0f}s")
        self._kubectl.run("delete", f"persistentvolumeclaim/{step.name}", *words, seconds=PATIENCE)

    @execute.register
    def _(self, step: MakeSecret) -> None:
        labels = {INSTANCE: step.stack, PART_OF: self._cluster, MANAGED_BY: MANAGER}
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": step.name, "labels": labels},
            "stringData": dict(self._secrets[step.workload]),
        }
        self._kubectl.run(*APPLY, "--force-conflicts", "--filename=-", stdin=json.dumps(document))

    @execute.register
    def _(self, step: Apply) -> None:
        text, deadline = listed(self._objects[step.stack]), time.monotonic() + WEBHOOKS
        while True:
            try:
                self._kubectl.run(*APPLY, "--filename=-", stdin=text, seconds=APPLIED)
            except KubectlError as error:
                if not error.early or time.monotonic() > deadline:
                    raise
                time.sleep(POLL)
            else:
                return

    @execute.register
    def _(self, step: Prune) -> None:
        self._kubectl.run("delete", *step.titles, "--ignore-not-found")

    @execute.register
    def _(self, step: Remove) -> None:
        self.remove(step.stack, step.grace)

    def end_jobs(self, step: EndJobs) -> None:
        """Delete the objects that train; their pods begin to end."""
        # Not in the foreground: the pod of a dead node would keep the Job until the node is back.
        words = ("--cascade=background", "--ignore-not-found", "--wait=false")
        self._kubectl.run("delete", *step.titles, *words)

    def remove(self, stack: str, grace: int) -> None:
        """Delete everything of a workload but its volume claim, and wait until its pods end."""
        own = selector(self._cluster, stack)
        kinds = ",".join((*self._kubectl.extras, DELETED))
        self._kubectl.run("delete", kinds, own, "--cascade=background", "--wait=false")
        words = ("secret", secret_of(stack), "--ignore-not-found", "--wait=false")
        self._kubectl.run("delete", *words)  # To wait, it would read the Secret.
        self.await_end(stack, grace)

    def await_end(self, stack: str, grace: int) -> None:
        """Wait until no pod of a workload trains or answers any more.

        Raises:
            KitError: Pods still exist PATIENCE seconds after their grace period.
        """
        deadline = time.monotonic() + grace + PATIENCE
        while left := observe(self._kubectl, self._cluster).pods_of(stack):
            alive = [pod for pod in left if not pod.over and pod.answers]
            if not alive and time.monotonic() > deadline:
                return  # Their nodes are dead.
            if time.monotonic() > deadline:
                names = ", ".join(pod.name for pod in alive)
                raise KitError(f"{names} has not ended after {grace + PATIENCE:.0f} s", "try again")
            time.sleep(POLL)
