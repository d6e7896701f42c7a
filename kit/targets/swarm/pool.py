"""The pool of the queue as the Swarm's services, tasks and nodes show it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from kit.model import resource_of
from kit.queue.carrier import Seen
from kit.queue.document import Rules
from kit.queue.hours import lent
from kit.queue.moves import Release
from kit.queue.pool import Had, Pool, PoolHost
from kit.queue.record import Record
from kit.queue.words import wish_of
from kit.runtime.status import State
from kit.targets.swarm.state import OVER, Cluster, Node, Service, Task
from kit.workload.names import stack_of_job
from kit.workload.types import Role

SINCE = "kit.queue.since"
"""The label with the time at which a service's host was given to its job."""
RECLAIMED = "kit.reclaimed"
"""The node label of a host that its owner uses, with who wants it."""
AVOIDED = "kit.avoided"
"""The node label of a host on which somebody has ended a job by hand, with the time."""
AVOIDED_FOR = 300.0
"""Seconds until a job is tried on such a host again."""
BY_HAND = frozenset({143, 130})
"""The exit statuses of a host that was asked to leave its job, by SIGTERM or SIGINT, though its
service is on."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ON = f"{Role.TRAIN}-on-"


def see(
    cluster: Cluster, rules: Rules, records: Iterable[Record], used: Mapping[str, float], now: float
) -> Seen:
    """Return the pool at a time. `records` are those of jobs that have not ended."""
    jobs = [(each, _places(cluster, each.job)) for each in records]
    ended = {
        record.job: state for record, places in jobs if places and (state := _end(cluster, places))
    }
    ending = {record.job for record, places in jobs if _ends(cluster, places)} - ended.keys()
    left = [(r, p) for r, p in jobs if p and r.job not in {*ended, *ending}]
    kept = {
        host: service.variable(VISIBLE).split(",")
        for _, places in left
        for host, service in places.items()
        if service.replicas
    }
    stacks = {stack_of_job(record.job) for record, _ in left}
    hosts = tuple(_hosts(cluster, rules, stacks, kept, now))
    there = {host.name for host in hosts if host.there}
    queued = []
    for record, places in left:
        labels = dict(next(iter(places.values())).labels)
        has = {host: had for host, had in _has(cluster, places) if host in there}
        queued.append(record.to_job(wish_of(labels, frozenset(places)), has))
    lost = tuple(
        Release(record.job, host)
        for record, places in left
        for host, service in places.items()
        if service.replicas and host not in there
    )
    on = {
        record.job
        for record, _ in left
        for service in cluster.stack(stack_of_job(record.job))
        if Role.of(service.part) is Role.RENDEZVOUS and service.replicas
    }
    pool = Pool(now, hosts, rules.sharing.people, tuple(queued), used)
    return Seen(
        pool=pool,
        lost=lost,
        ended=ended,
        ending=frozenset(ending),
        coordinators=frozenset(on),
        reclaimed={node.name: who for node in cluster.nodes if (who := node.label(RECLAIMED))},
        interrupted=tuple(
            Release(record.job, host)
            for record, places in left
            for host, service in places.items()
            if _interrupted(cluster, service)
        ),
        avoided={
            node.name: until for node in cluster.nodes if (until := _avoided_until(node)) > now
        },
    )


def _places(cluster: Cluster, job: str) -> dict[str, Service]:
    """Return the service of each host of a job."""
    services = cluster.stack(stack_of_job(job))
    return {each.part.removeprefix(ON): each for each in services if each.part.startswith(ON)}


def _newest(cluster: Cluster, service: Service) -> Task | None:
    return next(reversed(cluster.tasks_of([service])), None)


def _living(cluster: Cluster, service: Service) -> bool:
    """Return whether a task may still hold GPUs. One on a node that is down does not count."""
    tasks = cluster.tasks_of([service])
    return any(task.state not in OVER and not _is_down(cluster, task.node) for task in tasks)


def _is_down(cluster: Cluster, node: str) -> bool:
    found = cluster.node(node)
    return found is not None and found.down


def _on(cluster: Cluster, places: Mapping[str, Service]) -> Iterator[tuple[Service, Task | None]]:
    for service in places.values():
        if service.replicas:
            yield service, _newest(cluster, service)


def _interrupted(cluster: Cluster, service: Service) -> bool:
    """Return whether somebody has ended its container by hand since it got the host."""
    since = float(service.label(SINCE) or 0.0)
    return bool(service.replicas) and any(
        task.state == "failed" and task.exit_status in BY_HAND and task.at > since
        for task in cluster.tasks_of([service])
    )


def _avoided_until(node: Node) -> float:
    return float(node.label(AVOIDED) or -AVOIDED_FOR) + AVOIDED_FOR


def _ends(cluster: Cluster, places: Mapping[str, Service]) -> bool:
    return any(task and task.state == "complete" for _, task in _on(cluster, places))


def _end(cluster: Cluster, places: Mapping[str, Service]) -> State | None:
    """Return the state of a job that has ended by itself; None if it has not."""
    on = list(_on(cluster, places))
    if not on or any(_living(cluster, service) for service, _ in on):
        return None
    if any(task and task.state == "complete" for _, task in on):
        return State.COMPLETED
    return State.FAILED if all(cluster.given_up(service) for service, _ in on) else None


def _hosts(
    cluster: Cluster,
    rules: Rules,
    stacks: Collection[str],
    kept: Mapping[str, Collection[str]],
    now: float,
) -> Iterator[PoolHost]:
    """Yield the hosts with the GPUs that no other stack holds.

    Of a host from which a new leader of the managers has not heard yet, these are the GPUs that
    jobs of the queue have already.
    """
    holders = cluster.holders()
    for name, gpus, hours in rules.hosts:
        node = cluster.node_of(name)
        there = node is not None and not node.down and node.availability == "active"
        is_open, until = lent(hours, now) if hours else (True, None)
        if node and node.label(RECLAIMED):
            is_open, until = False, None
        elif node and _avoided_until(node) > now:
            is_open, until = False, _avoided_until(node)
        if there and node and not node.ready:
            gpus = tuple(gpu for gpu in gpus if gpu in kept.get(name, ()))
        free = tuple(
            gpu for gpu in gpus if holders.get((name, resource_of(gpu)), "") in {"", *stacks}
        )
        yield PoolHost(name, free, is_open, until, there)


def _has(cluster: Cluster, places: Mapping[str, Service]) -> Iterator[tuple[str, Had]]:
    for host, service in places.items():
        if service.replicas or _living(cluster, service):
            since = float(service.label(SINCE) or 0.0)
            gpus = tuple(service.variable(VISIBLE).split(","))
            yield host, Had(gpus, since, leaving=not service.replicas)
