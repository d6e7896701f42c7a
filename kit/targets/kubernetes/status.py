"""The status of a workload from its pods, with the reasons of delays and failures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kit.runtime.endings import HOPELESS, never_began
from kit.runtime.status import HostStatus, State
from kit.targets.kubernetes.reasons import unplaced
from kit.targets.kubernetes.state import Namespace, Object, Pod
from kit.workload.types import Kind

PULLING = "pulls its image"
NOWHERE = "nowhere"
"""The host of a pod that no node takes."""
NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
ENDED_CODES = {"Error", "OOMKilled"}
"""A container has ended, and the pod's phase follows."""
STARTING = {"ContainerCreating", "PodInitializing"}


def host_statuses(
    found: Namespace, stack: str, planned: Mapping[str, tuple[str, ...]]
) -> tuple[HostStatus, ...]:
    """Return the status of each host from its newest pod; `planned` are its GPUs in the files.

    Pods that no node has taken yet stand for hosts without one. A pod that is marked for deletion
    counts only until its replacement is placed.
    """
    pods = found.pods_of(stack)
    placed = {pod.node: pod for pod in pods if pod.node}
    waiting = [pod for pod in pods if not (pod.node or pod.over)]
    over = {each.name for each in found.working(stack) if each.ended}
    refusal = found.refusal(stack)
    statuses = []
    for host in dict.fromkeys((*planned, *placed)):
        pod = placed.get(host)
        if waiting and (pod is None or pod.ends or _failed(pod)):
            pod = waiting.pop(0)
        status = _host_status(host, pod, refusal, ended=bool(over))
        by_uuid = pod is not None and pod.by_uuid
        statuses.append(replace(status, devices=planned.get(host, ())) if by_uuid else status)
    statuses += [_host_status(NOWHERE, pod, ended=bool(over)) for pod in waiting]
    return tuple(statuses)


def pool_statuses(found: Namespace, stack: str, number: int) -> tuple[HostStatus, ...]:
    """Return the status of each place in a pool of nodes, from its newest pod."""
    over = any(each.ended for each in found.working(stack))
    newest = {
        pod.name if pod.index is None else pod.index: pod
        for pod in found.pods_of(stack)
        if pod.index is not None or not pod.over
    }
    pods = sorted(newest.values(), key=lambda pod: (pod.node == "", pod.node))
    statuses = [_host_status(pod.node or NOWHERE, pod, ended=over) for pod in pods]
    lacking = _host_status(NOWHERE, None, found.refusal(stack), ended=over)
    return (*statuses, *[lacking] * (number - len(statuses)))


def _failed(pod: Pod) -> bool:
    return pod.phase == "Failed"


def _host_status(host: str, pod: Pod | None, refusal: str = "", *, ended: bool) -> HostStatus:
    if pod is None:
        yet = refusal or "Kubernetes has not created a pod for it yet"
        message = "" if ended else yet
        state = State.STOPPED if ended else State.WAITING
        return HostStatus(host, 0, state, None, message=message)
    return HostStatus(
        host=host,
        processes=pod.processes,
        # A number of GPUs, which the device plugin chooses.
        devices=tuple(map(str, range(pod.gpus))),
        state=_state(pod, ended=ended),
        exit_status=None if pod.phase == "Running" and pod.answers else pod.exit_status,
        message=explain(pod),
        starts=pod.restarts + 1,
    )


def _state(pod: Pod, *, ended: bool) -> State:
    if pod.phase == "Succeeded":
        return State.COMPLETED
    if pod.phase == "Failed":
        hopeless = pod.exit_status in HOPELESS and not pod.ends
        return State.FAILED if hopeless or ended else State.WAITING
    if pod.ends:
        return State.WAITING if pod.lost else State.STOPPING
    if pod.phase == "Running" and not pod.code:
        return State.RUNNING
    return State.WAITING


def explain(pod: Pod) -> str:
    """Return the reason why a pod does not run, with a remedy; "" if it runs or is done."""
    if pod.phase == "Succeeded":
        return ""
    if pod.code in NO_IMAGE:
        return f"the node cannot get the image: {pod.why}"
    if pod.code in STARTING:
        return PULLING
    if pod.code == "Unschedulable":
        return unplaced(pod.why)
    if pod.code == "CreateContainerConfigError":
        return f"its container cannot be made: {pod.why}"
    if pod.phase == "Failed" or pod.code in ENDED_CODES:
        return _failure(pod)
    if pod.ends:
        return "its node does not answer" if pod.lost else "it ends"
    if pod.code == "CrashLoopBackOff":
        return f"it ended with exit status {pod.exit_status} and starts again"
    return pod.why if pod.code else ""


def _failure(pod: Pod) -> str:
    if reason := never_began(Kind.JOB, "of the job", pod.exit_status):
        return reason
    if pod.code == "OOMKilled":
        return "its memory exceeded `limits: {memory: …}`"
    if pod.code == "Evicted":
        return f"the node has evicted it: {pod.why}"
    if pod.ends and pod.exit_status is None:
        return "it was deleted"
    return f"it ended with exit status {pod.exit_status}"


def job_state(
    kind: Kind, work: Sequence[Object], hosts: Sequence[HostStatus], needed: int
) -> tuple[State, str]:
    """Return the state of a workload, and the reason of its failure."""
    states = [host.state for host in hosts]
    if kind is Kind.SERVER:
        return (State.RUNNING if any(each.ready for each in work) else State.WAITING), ""
    completed = states.count(State.COMPLETED)
    if work and all(each.ended == "Complete" for each in work):
        return State.COMPLETED, ""
    if len(work) > 1 and completed >= needed and State.RUNNING not in states:
        return State.COMPLETED, ""
    if failed := [each for each in work if each.ended == "Failed"]:
        return State.FAILED, "; ".join(each.reason for each in failed)
    if states.count(State.FAILED) > len(states) - needed:
        return State.FAILED, "; ".join(_reasons(hosts))
    return (State.RUNNING if State.RUNNING in states else State.WAITING), ""


def _reasons(hosts: Sequence[HostStatus]) -> Iterator[str]:
    for host in hosts:
        if host.state is State.FAILED and host.message:
            yield f"{host.host}: {host.message}"
