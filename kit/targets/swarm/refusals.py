"""The faults that prevent a deploy on a Swarm: missing hosts, GPUs in use. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from kit.errors import KitError, once
from kit.runtime.status import ENDED
from kit.targets.swarm.order import gpus_of
from kit.targets.swarm.state import Cluster, Node
from kit.targets.swarm.status import ending, gpus_wanted, state_of
from kit.values import count
from kit.workload.types import Kind, Workload


def refuse(
    work: Sequence[Workload], cluster: Cluster, versions: Mapping[str, str], *, fresh: bool
) -> None:
    """Raise KitError with all faults that prevent the deploy of workloads."""
    ours = {each.stack for each in work}
    planned: Counter[str] = Counter()
    fixed = (each for each in work if not each.queue)  # The queue gives its jobs only free GPUs.
    for placement in (place for each in fixed for place in each.placements):
        planned[placement.host.name] += len(placement.gpus)
    problems = [
        problem
        for each in work
        for problem in _problems(each, ours, planned, cluster, versions, fresh=fresh)
    ]
    if problems:
        raise KitError(once(problems))


def _problems(
    job: Workload,
    ours: Collection[str],
    planned: Mapping[str, int],
    cluster: Cluster,
    versions: Mapping[str, str],
    *,
    fresh: bool,
) -> Iterator[str]:
    """Yield the faults that prevent a workload's deploy.

    `ours` are the stacks of the deploy, `planned` is the number of GPUs that it uses on each host.
    """
    anew = fresh and job.kind is Kind.JOB
    if anew and state_of(cluster, job.name) not in {None, *ENDED}:
        end = "cancel" if job.queue else "stop"
        yield f"job {job.name} runs: end it first, `kit {end} {job.name}`"
    yield from _held_by_others(job, ours, cluster, versions)
    down = []
    for placement in job.placements:
        host = placement.host.name
        node = cluster.node_of(host)
        if node is None:
            yield f"{host} is not a node of the swarm: kit swarm up"
        elif not node.ready or node.availability != "active":
            down.append(f"{host} is {'down' if not node.ready else node.availability}")
        elif not job.queue and (shortage := _shortage(node, planned[host], job, ours, cluster)):
            yield f"{job.name}: {shortage}"
    if down and not job.queue and len(job.placements) - len(down) < job.needed:
        fewer = ", or let the job continue with fewer (`hosts: {min: …}`)"
        yield (
            f"{job.name}: {', '.join(down)}, and it needs {count(job.needed, 'host')}: "
            f"bring it back{fewer if job.kind is Kind.JOB else ''}"
        )


def _held_by_others(
    job: Workload, ours: Collection[str], cluster: Cluster, versions: Mapping[str, str]
) -> Iterator[str]:
    """Yield the GPUs of a workload that are held by a workload outside this deploy.

    A workload without a file cannot be deployed too. Jobs of the queue leave GPUs by themselves.
    """
    wanted = gpus_of(job)
    for (host, gpu), stack in sorted(cluster.holders().items()):
        if (host, gpu) in wanted and stack not in ours and not cluster.queued(stack):
            name = cluster.owner(stack)
            too = f"deploy {name} too, or " if f"{stack}.stack.yaml" in versions else ""
            yield f"{job.name}: {gpu} of {host} is held by {name}: {too}{ending(cluster, stack)}"


def _shortage(
    node: Node, planned: int, job: Workload, ours: Collection[str], cluster: Cluster
) -> str:
    """Return the reason why a node has too few free GPUs, or "" if it has enough.

    The GPUs that workloads of this deploy hold now are ignored: the plan assigns them again; and
    those of the queue, whose jobs leave them.
    """
    held = cluster.held(node).items()
    others = sum(n for name, n in held if name not in ours and not cluster.queued(name))
    if planned + others <= len(node.gpus):
        return ""
    return gpus_wanted(cluster, node, planned, job.stack)
