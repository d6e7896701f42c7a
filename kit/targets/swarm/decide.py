"""The decision on the steps of a deploy on a Swarm: a pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.errors import KitError
from kit.runtime.status import ENDED, State
from kit.runtime.steps import Step
from kit.targets.swarm.labels import CLAIMED, DATA_LABEL, NOWHERE, job_label, places
from kit.targets.swarm.monitoring import MONITORING
from kit.targets.swarm.names import monitoring_stack, secret_name, variable
from kit.targets.swarm.order import Gpu, gpus_of, in_order
from kit.targets.swarm.platform import PLATFORM
from kit.targets.swarm.refusals import refuse
from kit.targets.swarm.state import OVER, Cluster, Node
from kit.targets.swarm.status import USED_UP, host_statuses, state_of
from kit.targets.swarm.steps import (
    AwaitEnd,
    AwaitGpus,
    Claim,
    DeleteCheckpoints,
    DeployStack,
    Label,
    MakeSecret,
    RemoveStack,
    RestartTasks,
    key_step,
    label_step,
    stack_cause,
)
from kit.targets.swarm.updates import move, new_parts, one_by_one
from kit.values import grouped
from kit.workload.names import stack_of_job
from kit.workload.types import Kind, Workload


def decide(
    cluster_name: str,
    work: Sequence[Workload],
    cluster: Cluster,
    versions: Mapping[str, str],
    secrets: Mapping[str, Mapping[str, str]],
    hosts: Collection[str],
    data: Mapping[str, str] | None = None,
    by_hand: Mapping[str, str] | None = None,
    *,
    fresh: bool,
) -> list[Step]:
    """Return the steps of a deploy; none for workloads that run as their files say.

    GPUs are released before they are reassigned. `versions` are the hashes of the rendered stacks
    by file name, `secrets` the hashes of the secrets by workload and name, `hosts` the names in the
    inventory. Nodes with other names get no GPU, so no step waits for their tasks. `data` are the
    labels of the data services by host, `by_hand` the changes by hand by stack.

    Raises:
        KitError: Hosts are missing or down, or their GPUs are in use.
    """
    refuse(work, cluster, versions, fresh=fresh)
    by_hand = by_hand or {}
    steps: list[Step] = list(_data_labels(data or {}, cluster))
    if data or any(each.keyed for each in work):
        steps += key_step(cluster_name, cluster.secrets)
    steps += _own_stacks(cluster_name, cluster, versions, by_hand)
    held = {gpu: cluster.owner(stack) for gpu, stack in cluster.holders().items()}
    ordered, first = in_order([each for each in work if each.parts], held)
    removed = dict(_removals(work, cluster, first, fresh=fresh))
    steps += [
        RemoveStack("swarm", f"remove {stack}", cause, stack) for stack, cause in removed.items()
    ]
    evictions = [
        eviction
        for each in work
        if each.stack not in removed
        for eviction in _evictions(each, cluster)
    ]
    late = {each.name for each in work if _answers_meanwhile(each, evictions, cluster)}
    steps += _ends([each for each in evictions if each.job.name not in late], hosts)
    evicted = {(eviction.job.name, eviction.node.id) for eviction in evictions}
    steps += [step for each in work for step in _labels(each, cluster, evicted)]
    for each in ordered:
        version, own = versions[f"{each.stack}.stack.yaml"], secrets.get(each.name, {})
        left = {gpu: name for gpu, name in held.items() if name != each.name}
        hand = by_hand.get(each.stack, "")
        again = each.stack in removed
        ends = [one for one in evictions if one.job is each] if each.name in late else []
        moved = list(_ends(ends, hosts))
        steps += _work(each, cluster, version, own, left, hand, moved, again=again, fresh=fresh)
    return steps


def _own_stacks(
    name: str, cluster: Cluster, versions: Mapping[str, str], by_hand: Mapping[str, str]
) -> Iterator[Step]:
    """Yield the steps that deploy kit's own stacks, the platform and the monitoring."""
    for file, stack in ((PLATFORM, f"{name}-platform"), (MONITORING, monitoring_stack(name))):
        services = cluster.stack(stack)
        # `kit swarm up` deploys the monitoring first, with Grafana's password.
        if file in versions and (services or file == PLATFORM):
            cause = stack_cause(services, versions[file], by_hand.get(stack, ""))
            if cause:
                yield DeployStack("swarm", f"deploy {file}", cause, stack, file)


def _answers_meanwhile(work: Workload, evictions: Sequence[_Eviction], cluster: Cluster) -> bool:
    """Return whether a server's former hosts can answer until the new ones do.

    Its clients must use a proxy, which finds the hosts that answer, and the new hosts must differ.
    """
    left = {each.node.host for each in evictions if each.job is work}
    come = {host.name for part in new_parts(work, cluster) for host in part.hosts}
    return work.proxied and bool(left and come) and not left & come


def _ends(evictions: Sequence[_Eviction], hosts: Collection[str]) -> Iterator[Step]:
    """Yield the steps that end tasks, then those that wait for it where their node is up."""
    yield from (each.label() for each in evictions)
    awaited = (each for each in evictions if each.node.ready and each.node.host in hosts)
    yield from (each.wait() for each in awaited)


def _data_labels(data: Mapping[str, str], cluster: Cluster) -> Iterator[Step]:
    for host, label in data.items():
        node = cluster.node_of(host)
        step = label_step(host, node, {DATA_LABEL: label}) if node else None
        if step is not None:
            yield step


def _removals(
    work: Sequence[Workload], cluster: Cluster, first: set[str], *, fresh: bool
) -> Iterator[tuple[str, str]]:
    """Yield the stacks to remove first, with reasons; ended jobs are removed separately."""
    fresh_jobs = {each.name for each in work if fresh and each.kind is Kind.JOB}
    for each in work:
        if not cluster.stack(each.stack):
            continue
        if not each.parts:
            yield each.stack, "no GPU is given to it"
        elif each.name in first:
            yield each.stack, "it swaps GPUs with another workload"
        elif each.reads in fresh_jobs:
            yield each.stack, f"it reads the checkpoints of {each.reads}, which are deleted"


@dataclass(frozen=True, slots=True)
class _Eviction:
    """A task to end: its host moves to the service `wanted`, or to none.

    Swarm ends a task if its node loses the label of its constraint, and counts its GPUs as free at
    once. But its container may still save and hold them, so the next task must wait.
    """

    job: Workload
    node: Node
    was: str
    wanted: str

    @property
    def service(self) -> str:
        """The full name of the task's service."""
        return f"{self.job.stack}_{self.was}"

    def label(self) -> Step:
        """Return the step that ends the task."""
        leaves = self.wanted == NOWHERE
        cause = "it is no longer used" if leaves else f"it becomes {self.wanted}"
        labels = ((job_label(self.job.name), NOWHERE),)
        node = self.node
        return Label(node.name, f"end {self.service}", cause, node.name, node.id, labels)

    def wait(self) -> Step:
        """Return the step that waits for its end."""
        name, what = self.node.name, f"wait until {self.service} has ended"
        return AwaitEnd(name, what, "this releases its GPUs", name, self.service)


def _evictions(job: Workload, cluster: Cluster) -> Iterator[_Eviction]:
    place = places(job)
    services = {service.part: service for service in cluster.stack(job.stack)}
    for node in cluster.nodes:
        service = services.get(node.label(job_label(job.name)) or NOWHERE)
        wanted = place.get(node.host or "", NOWHERE)
        if service is None or service.part == wanted:
            continue
        tasks = cluster.tasks_of([service])
        if any(task.node == node.id and task.state not in OVER for task in tasks):
            yield _Eviction(job, node, service.part, wanted)


def _labels(
    job: Workload, cluster: Cluster, evicted: Collection[tuple[str, str]]
) -> Iterator[Step]:
    """Yield the steps that set the nodes' new labels; the `evicted` ones are removed before."""
    place = places(job)
    for node in cluster.nodes:
        wanted = place.get(node.host or "", NOWHERE)
        step = label_step(node.name, node, {job_label(job.name): wanted})
        if step is not None and not (wanted == NOWHERE and (job.name, node.id) in evicted):
            yield step


def _work(
    job: Workload,
    cluster: Cluster,
    version: str,
    secrets: Mapping[str, str],
    others: Mapping[Gpu, str],
    by_hand: str,
    moved: Sequence[Step],
    *,
    again: bool,
    fresh: bool,
) -> Iterator[Step]:
    """Yield the steps for one workload; `others` hold GPUs, `again`: its stack was removed.

    `moved` end a server on its former hosts, as soon as the new ones answer.
    """
    services, state = cluster.stack(job.stack), state_of(cluster, job.name)
    wanted = {name: secret_name(job, name, hashed) for name, hashed in secrets.items()}
    used = {name for service in services for name in service.secrets}
    changed = [name for name, full in wanted.items() if full not in used]
    cause = stack_cause(services, version, by_hand)
    if again:
        cause = "to run again"
    elif state in ENDED:
        cause = f"it has {state}" if state is not State.STOPPED else "it was stopped"
        yield RemoveStack("swarm", f"remove {job.stack}", cause, job.stack)
        cause = "to run again"
    elif services and cause and not by_hand:
        cause = _change(job, cluster)
    elif changed and not cause:
        cause = f"{', '.join(changed)} has a new value"
    if fresh and job.kind is Kind.JOB:
        yield from _delete_checkpoints(job)
    for full in wanted.values():
        if full not in cluster.secrets:
            why = f"{job.file} names it, and this value is new"
            yield MakeSecret("swarm", f"make secret {full}", why, job.name, full)
    if cause:
        claims = list(_claims(job, others, cluster))
        yield from claims
        yield from _gpus(job, others)
        file = f"{job.stack}.stack.yaml"
        variables = tuple((variable(name), hashed) for name, hashed in secrets.items())
        deploy = DeployStack("swarm", f"deploy {file}", cause, job.stack, file, variables)
        yield from move(job, cluster, deploy, moved)
        yield from one_by_one(job, services, deploy, runs=not again and state not in ENDED)
        yield deploy
        yield from map(_unclaim, claims)
    if not again and state is not None and state not in ENDED:
        yield from _task_restarts(job, cluster)


def _task_restarts(job: Workload, cluster: Cluster) -> Iterator[Step]:
    """Yield the step that restarts tasks whose restarts are used up, while others run."""
    out = [each for each in host_statuses(cluster, job.name) if each.message.endswith(USED_UP)]
    if out:
        names = ", ".join(host.host for host in out)
        what, cause = f"start {job.name} again on {names}", "its restarts there are used up"
        yield RestartTasks("swarm", what, cause, job.stack)


def _claims(job: Workload, others: Mapping[Gpu, str], cluster: Cluster) -> Iterator[Claim]:
    """Yield the steps that claim the GPUs of a workload which jobs of the queue have."""
    held = sorted(gpu for gpu in gpus_of(job) if cluster.queued(stack_of_job(others.get(gpu, ""))))
    for host, gpus in grouped(held).items():
        if node := cluster.node_of(host):
            what = f"claim {', '.join(gpus)} of {host}"
            yield Claim(host, what, "a job of the queue has it, and leaves it", node.id, gpus)


def _unclaim(claim: Claim) -> Step:
    """Return the step that removes a claim."""
    labels = ((CLAIMED, None),)
    return Label(claim.where, f"label no {CLAIMED}", "done", claim.where, claim.node, labels)


def _gpus(job: Workload, others: Mapping[Gpu, str]) -> Iterator[Step]:
    """Yield the step that waits until other workloads release the GPUs of this one."""
    taken = {gpu: others[gpu] for gpu in gpus_of(job) if gpu in others}
    if taken:
        names = ", ".join(f"{gpu} of {host}" for host, gpu in sorted(taken))
        cause = f"{', '.join(sorted(set(taken.values())))} has it"
        yield AwaitGpus("swarm", f"wait for {names}", cause, job.stack, frozenset(taken))


def _change(job: Workload, cluster: Cluster) -> str:
    """Return the change of a running workload; all of its services have the same labels."""
    service = cluster.stack(job.stack)[0]
    trains = job.kind is Kind.JOB
    alone = "changed services " + ("continue from the checkpoint" if trains else "restart")
    if service.label("kit.job-hash") != job.job_hash:
        return f"{job.file} has changed" + (": it continues from its checkpoint" if trains else "")
    if service.label("kit.inventory-hash") != job.inventory_hash:
        return f"the inventory has changed: {alone}"
    return f"its file has changed: {alone}"


def _delete_checkpoints(job: Workload) -> Iterator[Step]:
    if job.store is None or not job.store.volume:
        kept = job.store.place if job.store else "a folder of yours"
        raise KitError(
            f"job {job.name} keeps its checkpoints in {kept}",
            "move them away to start from the beginning",
        )
    for placement in job.placements:
        host = placement.host
        what = f"delete the volume {job.store.volume}"
        yield DeleteCheckpoints(host.name, what, "--fresh", host, job.store.volume)
