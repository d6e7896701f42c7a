"""The pool of the queue, made from the Swarm's services, tasks and nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from kit.model import resource_of
from kit.queue.carrier import Seen
from kit.queue.document import Rules
from kit.queue.record import Record
from kit.queue.see import BY_HAND, CLAIM_LASTS, HostView, JobView, Place, see
from kit.queue.words import wish_of
from kit.targets.swarm.labels import CLAIMED, job_label
from kit.targets.swarm.state import OVER, VISIBLE, Cluster, Node, Service, Task
from kit.workload.names import stack_of_job
from kit.workload.types import Role

SINCE = "kit.queue.since"
"""The label with the time at which a service's host was given to its job."""
RECLAIMED = "kit.reclaimed"
"""The node label of a reclaimed host, with the person who reclaimed it."""
AVOIDED = "kit.avoided"
"""The node label of a host on which somebody has ended a job by hand, with the time."""
ON = f"{Role.TRAIN}-on-"
SKEW = 1.0
"""Seconds by which the clocks of the controller's host and of the manager may differ."""


def pool_of(
    cluster: Cluster, rules: Rules, records: Iterable[Record], used: Mapping[str, float], now: float
) -> Seen:
    """Return the pool at a time. `records` are those of jobs that have not ended."""
    jobs = list(_jobs(cluster, records))
    stacks = {stack_of_job(each.record.job) for each in jobs}
    taken = _taken(cluster, stacks) | _claimed(cluster, now)
    hosts = {name: _host(cluster, name, gpus, taken) for name, gpus, _ in rules.hosts}
    # A host that no longer belongs to the pool may still be marked.
    others = (node for node in cluster.nodes if node.name not in hosts)
    hosts |= {node.name: _marked(node) for node in others}
    return see(rules, jobs, hosts, used, now)


def _jobs(cluster: Cluster, records: Iterable[Record]) -> Iterator[JobView]:
    """Yield the jobs that have services."""
    for record in records:
        services = cluster.stack(stack_of_job(record.job))
        hosts = {each.part.removeprefix(ON): each for each in services if each.part.startswith(ON)}
        if hosts:
            labels = dict(next(iter(hosts.values())).labels)
            places = {host: _place(cluster, service) for host, service in hosts.items()}
            on = any(each.replicas for each in services if Role.of(each.part) is Role.RENDEZVOUS)
            yield JobView(record, wish_of(labels, frozenset(hosts)), places, on)


def _place(cluster: Cluster, service: Service) -> Place:
    tasks, since = cluster.tasks_of([service]), float(service.label(SINCE) or 0.0)
    newest = next(reversed(tasks), None)
    return Place(
        on=bool(service.replicas),
        living=any(_lives(cluster, task) for task in tasks),
        gpus=tuple(service.variable(VISIBLE).split(",")),
        since=since,
        completed=newest is not None and newest.state == "complete",
        failed=bool(cluster.given_up(service)) and newest is not None and not newest.restarts,
        by_hand=any(
            task.state == "failed" and task.exit_status in BY_HAND and task.at > since
            for task in tasks
            if task.created > since - SKEW  # One from before may still save and end.
        ),
    )


def _lives(cluster: Cluster, task: Task) -> bool:
    """Return whether a task may still hold GPUs. One on a node that is down does not count."""
    node = cluster.node(task.node)
    return task.state not in OVER and not (node is not None and node.down)


Gpu = tuple[str, str]
"""A host, and the name of its GPU in Swarm."""


def _taken(cluster: Cluster, stacks: Collection[str]) -> set[Gpu]:
    """Return the GPUs that other stacks hold, or wait for: those of a session that begins."""
    taken = {gpu for gpu, stack in cluster.holders().items() if stack and stack not in stacks}
    services = {service.id: service for service in cluster.services}
    for task in cluster.tasks:
        service = services.get(task.service)
        waits = task.gpus and task.state not in OVER and not task.node
        if waits and service and service.owner and not cluster.queued(service.stack):
            for node in cluster.nodes:
                if node.label(job_label(service.owner)) == service.part:
                    devices = node.gpus if task.devices == ("all",) else task.devices
                    taken |= {(node.name, device) for device in devices}
    return taken


def _claimed(cluster: Cluster, now: float) -> set[Gpu]:
    """Return the GPUs that deploys have claimed, and wait for."""
    claims = ((node.name, (node.label(CLAIMED) or "0").split()) for node in cluster.nodes)
    return {
        (host, gpu)
        for host, (since, *gpus) in claims
        if now - float(since) < CLAIM_LASTS
        for gpu in gpus
    }


def _host(cluster: Cluster, name: str, gpus: Collection[str], taken: Collection[Gpu]) -> HostView:
    node = cluster.node_of(name)
    if node is None:
        return HostView()
    held = frozenset(gpu for gpu in gpus if (name, resource_of(gpu)) in taken)
    there = not node.down and node.availability == "active"
    marked = _marked(node)
    return HostView(there, node.ready or not there, held, marked.reclaimed, marked.avoided)


def _marked(node: Node) -> HostView:
    reclaimed, avoided = node.label(RECLAIMED) or "", float(node.label(AVOIDED) or 0.0)
    return HostView(reclaimed=reclaimed, avoided=avoided)
