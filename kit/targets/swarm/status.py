"""The status of a workload from its tasks, with the reasons of delays and failures. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kit.queue.words import OWNER
from kit.runtime.endings import HOPELESS, never_began
from kit.runtime.status import ENDED, HostStatus, State
from kit.targets.swarm.labels import JOB_LABEL, job_label
from kit.targets.swarm.state import OVER, VISIBLE, Cluster, Node, Service, Task
from kit.values import count, grouped
from kit.workload.types import Kind, Role

PULLING, RELEASING = "pulls", "its GPUs are still being released"
"""The beginnings of the messages of tasks that only need time."""
NO_IMAGE = "the host cannot get the image"
"""The beginning of the message of tasks whose image is not on the host."""
USED_UP = "its restarts are used up: `kit deploy` starts it again"

_STATES = {
    "running": State.RUNNING,
    "complete": State.COMPLETED,
    "failed": State.FAILED,
    "rejected": State.FAILED,
    "shutdown": State.STOPPED,
    "orphaned": State.STOPPED,
    "remove": State.STOPPED,
}


def working(cluster: Cluster, name: str) -> tuple[Service, ...]:
    """Return the services of a workload that train or answer."""
    return tuple(each for each in logged(cluster, name) if Role.of(each.part) is not Role.PROXY)


def logged(cluster: Cluster, name: str) -> tuple[Service, ...]:
    """Return the services whose output people read: those that work, and a server's proxy."""
    silent = {Role.RENDEZVOUS, Role.CHECKPOINTS}
    return tuple(each for each in cluster.of(name) if Role.of(each.part) not in silent)


def names_of(cluster: Cluster) -> tuple[str, ...]:
    """Return the workloads that have a stack."""
    return tuple(sorted({each.owner for each in cluster.services if each.owner is not None}))


def lacking(cluster: Cluster, hosts: Iterable[str], stacks: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each of these hosts and stacks that the Swarm does not have."""
    nodes = (f"{host} is not a node of the swarm" for host in hosts if not cluster.node_of(host))
    others = (f"the stack {stack} is not there" for stack in stacks if not cluster.stack(stack))
    return tuple(f"{line}: `kit swarm up`" for line in (*nodes, *others))


def fewest_of(cluster: Cluster, job: str) -> int:
    """Return the smallest number of hosts of a job, from its services' environment."""
    nodes = (each.variable("KIT_NNODES").partition(":")[0] for each in cluster.of(job))
    return min((int(fewest) for fewest in nodes if fewest.isdigit()), default=1)


def state_of(cluster: Cluster, job: str) -> State | None:
    """Return the state of a job, or None if it has no stack."""
    if not cluster.of(job):
        return None
    return job_state(host_statuses(cluster, job), fewest_of(cluster, job))[0]


def host_statuses(cluster: Cluster, job: str) -> tuple[HostStatus, ...]:
    """Return the status of each host of a job from its newest task."""
    hosts: list[HostStatus] = []
    labelled = grouped((node.label(job_label(job)), node) for node in cluster.nodes)
    for service in working(cluster, job):
        if not service.replicas and service.label(OWNER):
            continue  # The queue has not given it this host.
        hosts += _of_service(cluster, service, labelled.get(service.part, ()))
    return tuple(sorted(hosts, key=lambda host: host.host))


def _of_service(
    cluster: Cluster, service: Service, labelled: Sequence[Node]
) -> Iterable[HostStatus]:
    """Yield the status of the nodes with its tasks, and of others that have its label."""
    newest = {task.slot: task for task in cluster.tasks_of([service])}
    placed = {task.node: task for task in newest.values() if task.node}
    unplaced = [task for task in newest.values() if not task.node]
    for id_, task in placed.items():
        if node := cluster.node(id_):
            yield _host_status(cluster, service, node, task)
    for node in labelled:
        if node.id not in placed:
            yield _host_status(cluster, service, node, unplaced.pop() if unplaced else None)
    for task in unplaced:
        yield replace(_host_status(cluster, service, None, task), host="nowhere")


def _host_status(
    cluster: Cluster, service: Service, node: Node | None, task: Task | None
) -> HostStatus:
    devices = service.variable(VISIBLE)
    named = node.gpus if node and devices == "all" else tuple(devices.split(","))
    state = (
        State.WAITING if task is None or task.restarts else _STATES.get(task.state, State.WAITING)
    )
    if not service.replicas:
        state = State.STOPPED
    if node and not node.ready and state is State.RUNNING:
        state = State.WAITING
    ended = _exit_status(cluster, service, task)
    if state is State.WAITING and ended in HOPELESS and service.kind is Kind.JOB:
        state = State.FAILED  # Swarm starts it again, and no restart can help.
    return HostStatus(
        host=node.name if node else "",
        processes=int(service.variable("KIT_NPROC") or service.variable("KIT_REPLICAS") or 0),
        state=state,
        exit_status=ended,
        devices=named,
        message=explain(cluster, service, node, task),
        starts=_starts(cluster, service, task),
        spare=bool(service.variable("KIT_SPARE")),
    )


def _exit_status(cluster: Cluster, service: Service, task: Task | None) -> int | None:
    """Return the exit status of a task or, if it waits to restart, of the failed one before it."""
    if task is None or task.state == "running":
        return None
    if task.state in OVER:
        return task.exit_status
    before = _failed_before(cluster, service, task)
    return before[-1].exit_status if before else None


def _starts(cluster: Cluster, service: Service, task: Task | None) -> int:
    """Return the starts of a task's slot since its service's last change, as Swarm remembers."""
    if task is None:
        return 0
    tasks = (each for each in cluster.tasks_of([service]) if each.slot == task.slot)
    return sum(each.created >= service.changed for each in tasks)


def _failed_before(cluster: Cluster, service: Service, task: Task) -> list[Task]:
    """Return the failed tasks of a task's slot, the oldest first, without those of older files."""
    return [
        each
        for each in cluster.tasks_of([service])
        if each.slot == task.slot
        and each.state in {"failed", "rejected"}
        and each.made_of == service.made_of
    ]


def explain(cluster: Cluster, service: Service, node: Node | None, task: Task | None) -> str:
    """Return the reason why a task does not run, with a remedy; "" if it runs or is done."""
    if node and not node.ready:
        return "the node is down"
    if node and node.availability != "active":
        command = f"docker node update --availability active {node.hostname}"
        return f"the node takes no tasks ({node.availability}): {command}"
    if task is None:
        return "Swarm has not created a task for it yet" if service.replicas else ""
    if task.state == "pending":
        return _pending(cluster, service, node, task)
    if task.state == "preparing":
        return f"{PULLING} {service.image.partition('@')[0]}"
    if task.state in {"failed", "rejected"}:
        reason = _failed(service, task)
        return reason if task.restarts else f"{reason}; {USED_UP}"
    if task.state in {"shutdown", "orphaned"} and service.replicas and task.exit_status:
        return f"was ended with exit status {task.exit_status}; {USED_UP}"
    if task.state in _STATES:
        return ""
    return _repeated(cluster, service, task)


def _repeated(cluster: Cluster, service: Service, task: Task) -> str:
    """Return the failure of the previous task, for a task that waits to restart."""
    before = _failed_before(cluster, service, task)
    return f"{_failed(service, before[-1])}; tried {count(len(before), 'time')}" if before else ""


def _failed(service: Service, task: Task) -> str:
    reason = task.error or task.message
    image = service.image.partition("@")[0]
    if "No such image" in reason or "manifest unknown" in reason or "pull access denied" in reason:
        return f"{NO_IMAGE} {image}: kit image push, or docker login"
    if match := re.search(r"bind source path does not exist: (\S+)", reason):
        return f"the folder {match[1]} does not exist on the host: make it there"
    if match := re.search(r"device error: (\S+): unknown device", reason):
        return f"it has no GPU {match[1]}: write what `nvidia-smi -L` prints there"
    if why := never_began(service.kind or Kind.JOB, image, task.exit_status, reason):
        return why
    if task.exit_status:
        return f"ended with exit status {task.exit_status}: see kit logs"
    return reason


def missing_image(host: HostStatus) -> str:
    """Return the image in the message of a host that cannot get it; "" for other messages."""
    match = re.match(rf"{NO_IMAGE} (\S+): ", host.message)
    return match[1] if match else ""


def _pending(cluster: Cluster, service: Service, node: Node | None, task: Task) -> str:
    reason = task.error
    if node is None:
        label = next(iter(service.constraints), "its constraint")
        return f"no node fits ({label}): {_labelling(service)}"
    if "insufficient resources" in reason:
        return gpus_wanted(cluster, node, service.gpus, service.stack)
    if "scheduling constraints" in reason:
        return f"no node has its label: {_labelling(service)}"
    return reason.removeprefix("no suitable node ").strip("()")


def _labelling(service: Service) -> str:
    """Return the command that gives nodes the labels of a service's constraints.

    A deploy or a split that was interrupted has set only some of a workload's labels.
    """
    own = any(f"node.labels.{JOB_LABEL}" in each for each in service.constraints)
    return f"kit deploy {service.owner}" if own else "kit swarm up"


def ending(cluster: Cluster, stack: str) -> str:
    """Return the advice how to end a stack's tasks."""
    services = cluster.stack(stack)
    if not services:
        return "it still ends, try again in a moment"
    if not stack:
        return "it is not a stack, see `docker service ls`"
    name = services[0].owner
    return f"end it with `kit stop {name}`" if name else f"end it with `docker stack rm {stack}`"


def gpus_wanted(cluster: Cluster, node: Node, wanted: int, stack: str) -> str:
    """Return the owners of a node's GPUs if fewer than `wanted` are free for a stack."""
    held = cluster.held(node)
    held.pop(stack, 0)
    leaving = [name for name in held if cluster.queued(name)]
    if leaving:
        return f"{RELEASING}, by {', '.join(map(cluster.owner, leaving))} of the queue"
    if sum(held.values()) + wanted <= len(node.gpus):
        # The old tasks may still save, or have ended since the scheduler's decision.
        return f"{RELEASING}, {count(wanted, 'GPU')} of {node.name}"
    offered = f"{node.name} offers {count(len(node.gpus), 'GPU')} to Swarm"
    if held and wanted <= len(node.gpus):
        holders = ", ".join(f"{name} holds {number}" for name, number in sorted(held.items()))
        first = ending(cluster, min(held))
        return f"{count(wanted, 'GPU')} wanted, {offered}, {holders}: {first}, or wait for it"
    return (
        f"{count(wanted, 'GPU')} wanted, {offered}: its daemon.json must list them; "
        f"kit host prepare {node.name} --run"
    )


def job_state(hosts: Sequence[HostStatus], fewest: int) -> tuple[State, str]:
    """Return the state and the message of a job; at least `fewest` hosts must complete."""
    states = {host.state for host in hosts}
    troubled = [host for host in hosts if host.message]
    reasons = "; ".join(f"{host.host}: {host.message}" for host in troubled[:3])
    if State.RUNNING in states:
        return State.RUNNING, reasons
    if states - ENDED or not hosts:
        return State.WAITING, reasons
    completed = [host for host in hosts if host.state is State.COMPLETED]
    if completed and len(completed) >= fewest:
        return State.COMPLETED, reasons
    return (State.FAILED if State.FAILED in states else State.STOPPED), reasons
