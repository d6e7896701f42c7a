"""The state of a namespace: kit's objects and pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kit.targets.kubernetes.names import COMPONENT, FILE, INDEX, INSTANCE, MAKERS, OWNER
from kit.targets.kubernetes.reasons import refused
from kit.workload.names import owner_of
from kit.workload.types import Kind, Role

ENDS = {"SuccessCriteriaMet": "Complete", "FailureTarget": "Failed"}
"""A Job has these conditions until its last pod has ended, which a dead node prevents."""
SUSPENDED = "its Job is suspended: it waits in its queue (kubectl get workloads)"
LOST = "DeletionByTaintManager"
"""The reason of the condition DisruptionTarget of a pod whose node does not answer."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a workload. `stack` is its label, `file` the hash of the file it is from.

    `ended` is `Complete` or `Failed` for a Job that has ended or ends, `reason` says why, or why a
    Deployment lacks pods. `ready` are the pods of a Deployment that answer, `most_failed` those of
    a Job that may fail for good. `waits`: the Job is suspended. `rolls`: pods of the Deployment's
    former template still run, or no controller has seen it. `owner` is the object that makes a Job,
    by its title. `made`: a controller has made it, and deletes it.
    """

    kind: str
    name: str
    stack: str
    component: str
    file: str
    created: float
    ended: str = ""
    ended_at: float | None = None
    reason: str = ""
    replicas: int = 0
    ready: int = 0
    most_failed: int = 0
    rolls: bool = False
    waits: bool = False
    owner: str = ""
    made: bool = False

    @property
    def title(self) -> str:
        """Its name for kubectl."""
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with one container. `node` is "" until it is placed.

    `phase` is Kubernetes'. `ends`: it is marked for deletion. `answers`: it is ready. `why` is
    the reason why it does not run, as the scheduler or the node says it. `lost`: its node does not
    answer. `exit_status` is that of its container, or of the one before. `began`: its container has
    run. `grace` are the seconds that it has to end, `claims` the volume claims that it mounts.
    `gpus` is the number that it asks for; `by_uuid`: it claims those of the inventory instead.
    """

    name: str
    stack: str
    component: str
    index: int | None
    node: str
    phase: str
    created: float
    processes: int
    ends: bool = False
    lost: bool = False
    answers: bool = False
    began: bool = False
    exit_status: int | None = None
    restarts: int = 0
    why: str = ""
    code: str = ""
    grace: int = 0
    claims: tuple[str, ...] = ()
    gpus: int = 0
    by_uuid: bool = False

    @property
    def over(self) -> bool:
        """Whether its container does not run again."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class Namespace:
    """The objects and the pods of a cluster of kit in a namespace.

    `refused` are the reasons why controllers could not create pods, by the names of their objects.
    """

    objects: tuple[Object, ...]
    pods: tuple[Pod, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, stack: str) -> tuple[Object, ...]:
        """Return the objects of a workload."""
        return tuple(each for each in self.objects if each.stack == stack)

    def jobs(self, stack: str) -> tuple[Object, ...]:
        """Return the Jobs of a workload that train."""
        return tuple(each for each in self.working(stack) if each.kind == "Job")

    def owners(self, stack: str) -> tuple[str, ...]:
        """Return the titles of the objects whose deletion ends a workload's training."""
        made = [each.title for each in self.of(stack) if each.kind in MAKERS]
        return tuple(
            dict.fromkeys([*made, *(each.owner or each.title for each in self.jobs(stack))])
        )

    def coordinators(self, stack: str) -> tuple[Object, ...]:
        """Return the coordinator's Job, at which the hosts of a workload meet, if it exists."""
        own = {each.name for each in self.jobs(stack)}
        return tuple(each for each in self.of(stack) if each.kind == "Job" and each.name not in own)

    def working(self, stack: str) -> tuple[Object, ...]:
        """Return the Jobs or Deployments that train or answer, or objects that will make Jobs."""
        roles = {str(Role.TRAIN), str(Role.SERVE)}
        own = [each for each in self.of(stack) if each.component in roles]
        works = tuple(each for each in own if each.kind in {"Job", "Deployment"})
        return works or tuple(each for each in own if each.kind in MAKERS)

    def pods_of(self, stack: str) -> tuple[Pod, ...]:
        """Return the pods of a workload that train or answer, the oldest first."""
        roles = {str(Role.TRAIN), str(Role.SERVE)}
        own = (pod for pod in self.pods if pod.stack == stack and pod.component in roles)
        return tuple(sorted(own, key=lambda pod: (pod.created, pod.name)))

    @property
    def lacks_pods(self) -> bool:
        """Whether a Job that continues has fewer pods than it should."""
        stacks = {each.stack for each in self.objects if each.kind == "Job" and not each.ended}
        return any(
            sum(each.replicas for each in self.jobs(stack)) > len(self.pods_of(stack))
            for stack in stacks
        )

    def refusal(self, stack: str) -> str:
        """Return why a workload lacks pods, "" if no reason is known."""
        own = self.working(stack)
        if any(each.waits and not each.ended for each in own):
            return SUSPENDED
        found = (self.refused.get(each.name, "" if each.ended else each.reason) for each in own)
        return next(filter(None, found), "")

    @property
    def stacks(self) -> Mapping[str, tuple[Kind, str]]:
        """The workloads with objects that train or answer: stacks with kind and name."""
        found = {each.stack for each in self.objects if self.working(each.stack)}
        return {stack: owner for stack in sorted(found) if (owner := owner_of(stack))}


def read_object(document: Mapping[str, Any]) -> Object:
    """Return an object of the API."""
    meta, status = document["metadata"], document.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    spec = document.get("spec") or {}
    ended = next(
        (each for each in status.get("conditions") or () if _is_end(document["kind"], each)), None
    )
    return Object(
        kind=document["kind"],
        name=meta["name"],
        stack=labels.get(INSTANCE, ""),
        component=labels.get(COMPONENT, ""),
        file=notes.get(FILE, ""),
        created=seconds(meta["creationTimestamp"]),
        ended=ENDS.get(ended["type"], ended["type"]) if ended else "",
        ended_at=seconds(ended["lastTransitionTime"]) if ended else None,
        reason=(ended.get("message") or "") if ended else _replica_failure(status),
        replicas=spec.get("completions") or spec.get("replicas") or 0,
        ready=status.get("readyReplicas") or 0,
        most_failed=spec.get("maxFailedIndexes") or 0,
        rolls=document["kind"] == "Deployment" and _rolls(meta, spec, status),
        waits=bool(spec.get("suspend")),
        owner=notes.get(OWNER, ""),
        made=any(each.get("controller") for each in meta.get("ownerReferences") or ()),
    )


def _replica_failure(status: Mapping[str, Any]) -> str:
    """Return why a Deployment could not create pods, or ""."""
    failure = _condition(status, "ReplicaFailure")
    return refused(failure.get("message") or "") if failure.get("status") == "True" else ""


def _rolls(meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether a Deployment has not rolled out completely, like `kubectl rollout status`."""
    if (status.get("observedGeneration") or 0) < (meta.get("generation") or 0):
        return True
    updated = status.get("updatedReplicas") or 0
    return updated < (spec.get("replicas") or 0) or (status.get("replicas") or 0) > updated


def _is_end(kind: str, condition: Mapping[str, Any]) -> bool:
    return (
        kind == "Job"
        and condition["type"] in {*ENDS, *ENDS.values()}
        and condition["status"] == "True"
    )


def read_pod(document: Mapping[str, Any]) -> Pod:
    """Return a pod of the API."""
    meta, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    labels = meta.get("labels") or {}
    (container,) = spec["containers"][:1]
    seen: dict[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    code, why = _reason(status, seen)
    index = (meta.get("annotations") or {}).get(INDEX)
    state, before = seen.get("state") or {}, seen.get("lastState") or {}
    over = state.get("terminated") or before.get("terminated") or {}
    resources = container.get("resources") or {}
    return Pod(
        name=meta["name"],
        stack=labels.get(INSTANCE, ""),
        component=labels.get(COMPONENT, ""),
        index=int(index) if index else None,
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        created=seconds(meta["creationTimestamp"]),
        processes=_processes(container.get("env") or ()),
        ends="deletionTimestamp" in meta,
        lost=_condition(status, "DisruptionTarget").get("reason") == LOST,
        answers=_condition(status, "Ready").get("status") == "True",
        began="running" in state or bool(over),
        exit_status=over.get("exitCode"),
        restarts=seen.get("restartCount") or 0,
        why=why,
        code=code,
        grace=spec.get("terminationGracePeriodSeconds") or 0,
        gpus=int((resources.get("limits") or {}).get("nvidia.com/gpu") or 0),
        by_uuid=bool(resources.get("claims")),
        claims=tuple(
            each["persistentVolumeClaim"]["claimName"]
            for each in spec.get("volumes") or ()
            if "persistentVolumeClaim" in each
        ),
    )


def _processes(variables: Sequence[Mapping[str, Any]]) -> int:
    own = {each["name"]: each.get("value") for each in variables}
    return int(own.get("KIT_NPROC") or own.get("KIT_REPLICAS") or 0)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def _reason(status: Mapping[str, Any], seen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the code and the text of the reason why a pod does not run."""
    placed = _condition(status, "PodScheduled")
    if placed.get("status") == "False":
        return placed.get("reason") or "", placed.get("message") or ""
    waits = (seen.get("state") or {}).get("waiting") or {}
    if waits:
        return waits.get("reason") or "", waits.get("message") or ""
    over = (seen.get("state") or {}).get("terminated") or {}
    return status.get("reason") or over.get("reason") or "", status.get("message") or ""


def seconds(stamp: str) -> float:
    """Return the seconds since the epoch of a time of the API, in UTC."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
