"""The pool of the queue: GPUs that no other job has, and the people who share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kit.errors import Fault
from kit.jobs import Job
from kit.model import Host, Inventory, Use
from kit.plan.types import Placement
from kit.sharing import Queued, Sharing
from kit.values import count
from trainer.contract.words import nearest


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The hosts of the queue with the ids of their GPUs, and the rules of sharing them."""

    hosts: tuple[tuple[Host, tuple[str, ...]], ...]
    sharing: Sharing


def pool_plan(inventory: Inventory, taken: Callable[[str, str], bool]) -> PoolPlan:
    """Return the pool: the GPUs for training that are not `taken`, by host and id."""
    hosts = (
        (
            host,
            tuple(
                gpu.id
                for gpu in host.gpus
                if gpu.use is Use.TRAINING and not taken(host.name, gpu.id)
            ),
        )
        for host in inventory.hosts
    )
    return PoolPlan(tuple((host, ids) for host, ids in hosts if ids), inventory.sharing)


def counted(queue: Queued | None, placements: Sequence[Placement]) -> Sequence[Placement]:
    """Return the hosts that the figures of a plan assume: the most that a job may have."""
    if queue is None or queue.counts_gpus or queue.most is None:
        return placements
    return placements[: queue.most]


def in_words(queue: Queued) -> str:
    """Describe a job of the queue: its owner, its priority and its request."""
    noun = "GPU" if queue.counts_gpus else "host"
    least, most = count(queue.least, noun), queue.most
    wanted = f"at least {least}" if most is None else f"{queue.least} to {count(most, noun)}"
    if most == queue.least:
        wanted = least
    return f"{queue.owner}'s, priority {queue.priority}, {wanted}"


def nodes(queue: Queued, placements: Sequence[Placement]) -> tuple[int, int]:
    """Return the least and the most hosts of a job of the queue that train together."""
    if queue.counts_gpus:
        return 1, len(placements)
    return queue.least, min(queue.most or len(placements), len(placements))


def queue_faults(
    inventory: Inventory, jobs: Iterable[Job], training: Iterable[Sequence[Placement]]
) -> Iterator[Fault]:
    """Yield jobs of unknown people, and jobs that want more than the pool ever has."""
    people = [person.name for person in inventory.sharing.people]
    for job, placements in zip(jobs, training, strict=True):
        if job.queue is None:
            continue
        if people and job.queue.owner not in people:
            what = f"{job.queue.owner} is not among the people of the inventory's `queue:`"
            yield Fault(job.name, ("queue", "owner"), what, nearest(job.queue.owner, people))
        if placements:
            yield from _too_much(job, job.queue, placements)


def _too_much(job: Job, queue: Queued, placements: Sequence[Placement]) -> Iterator[Fault]:
    noun, key = ("GPU", "gpus") if queue.counts_gpus else ("host", "hosts")
    able = sum(len(each.gpus) for each in placements) if queue.counts_gpus else len(placements)
    if queue.least > able:
        what = f"the job wants at least {count(queue.least, noun)}, the pool has {able} for it"
        fix = "write 1" if able == 1 else f"write a number from 1 to {able}"
        yield Fault(job.name, (key, "min"), what, fix)
