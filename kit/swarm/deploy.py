"""What it takes to bring jobs onto a Swarm: a pure function of the plan and of what is seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kit.engine import ENDED, State, Step
from kit.errors import KitError
from kit.plan.groups import job_label
from kit.plan.storage import CHECKPOINTS
from kit.plan.types import JobPlan, Placement
from kit.secrets import variable
from kit.swarm.members import PLATFORM
from kit.swarm.seen import Cluster, Node
from kit.swarm.steps import (
    NOWHERE,
    DeployStack,
    ForgetCheckpoints,
    MakeSecret,
    RemoveStack,
    label_step,
    stack_cause,
)
from kit.swarm.tasks import gpus_wanted, state_of


def steps_deploy(
    cluster_name: str,
    jobs: Sequence[JobPlan],
    cluster: Cluster,
    versions: Mapping[str, str],
    secrets: Mapping[str, Mapping[str, str]],
    *,
    fresh: bool,
) -> list[Step]:
    """Return what brings the jobs up; nothing for one that runs from the same file already.

    `versions` are the hashes of the rendered stacks, by file name; `secrets` those of each job's
    secrets, by their names.

    Raises:
        KitError: Hosts that a job needs are no nodes, are down, or their GPUs are taken.
    """
    problems = [problem for job in jobs for problem in _problems(job, jobs, cluster, fresh=fresh)]
    if problems:
        raise KitError("\n".join(problems))
    steps: list[Step] = [step for job in jobs for step in _labels(job, cluster)]
    if PLATFORM in versions:
        stack = f"{cluster_name}-platform"
        cause = stack_cause(cluster.stack(stack), versions[PLATFORM])
        if cause:
            steps.append(DeployStack("swarm", f"deploy {PLATFORM}", cause, stack, PLATFORM))
    for job in jobs:
        version, own = versions[f"{job.stack}.stack.yaml"], secrets.get(job.name, {})
        steps += _job(job, cluster, version, own, fresh=fresh)
    return steps


def secret_name(job: JobPlan, name: str, fingerprint: str) -> str:
    """Return the name of a secret in Swarm, as the rendered stack puts it together."""
    return f"{job.stack}-{name}-{fingerprint}"


def _problems(
    job: JobPlan, jobs: Sequence[JobPlan], cluster: Cluster, *, fresh: bool
) -> Iterator[str]:
    if fresh and state_of(cluster, job.name) not in {None, *ENDED}:
        yield f"job {job.name} runs: end it before it begins anew, `kit stop {job.name}`"
    down = []
    for placement in job.placements:
        host = placement.host.name
        node = cluster.node_of(host)
        if node is None:
            yield f"{host} is no node of the swarm that kit knows: kit swarm up"
        elif not node.ready or node.availability != "active":
            down.append(f"{host} is {'down' if not node.ready else node.availability}")
        elif shortage := _shortage(placement, node, job, jobs, cluster):
            yield f"{job.name}: {shortage}"
    if len(job.placements) - len(down) < job.nodes[0]:
        yield (
            f"{job.name}: {', '.join(down)}, and it needs {job.nodes[0]} hosts: "
            f"bring it back, or let the job go on with fewer (`hosts: {{min: …}}`)"
        )


def _shortage(
    placement: Placement, node: Node, job: JobPlan, jobs: Sequence[JobPlan], cluster: Cluster
) -> str:
    """Say why a node has not enough GPUs left for a job, "" where it has.

    What the jobs of this deploy hold now does not count: they will hold what the plan says.
    """
    ours = {each.stack for each in jobs}
    planned = sum(
        each.processes
        for other in jobs
        for each in other.placements
        if other is not job and each.host == placement.host
    )
    others = sum(number for name, number in cluster.held(node).items() if name not in ours)
    if placement.processes + planned + others <= len(node.gpus):
        return ""
    return gpus_wanted(cluster, node, placement.processes, job.stack)


def _labels(job: JobPlan, cluster: Cluster) -> Iterator[Step]:
    place = {host: service.name for service in job.services for host in service.hosts}
    for node in cluster.nodes:
        wanted = {job_label(job.name): place.get(node.host or "", NOWHERE)}
        step = label_step(node.name, node, wanted)
        if step is not None:
            yield step


def _job(
    job: JobPlan, cluster: Cluster, version: str, secrets: Mapping[str, str], *, fresh: bool
) -> Iterator[Step]:
    services, state = cluster.stack(job.stack), state_of(cluster, job.name)
    wanted = {name: secret_name(job, name, hashed) for name, hashed in secrets.items()}
    used = {name for service in services for name in service.secrets}
    changed = [name for name, full in wanted.items() if full not in used]
    cause = stack_cause(services, version)
    if state in ENDED:
        cause = f"it has {state}" if state is not State.STOPPED else "it was stopped"
        yield RemoveStack("swarm", f"remove {job.stack}", cause, job.stack)
        cause = "to run again"
    elif services and cause:
        cause = _change(job, cluster)
    elif changed and not cause:
        cause = f"{', '.join(changed)} has a new value"
    if fresh:
        yield from _forget(job)
    for full in wanted.values():
        if full not in cluster.secrets:
            why = f"{job.job.file} names it, and this value is new"
            yield MakeSecret("swarm", f"make secret {full}", why, job.name, full)
    if cause:
        file = f"{job.stack}.stack.yaml"
        variables = tuple((variable(name), hashed) for name, hashed in secrets.items())
        yield DeployStack("swarm", f"deploy {file}", cause, job.stack, file, variables)


def _change(job: JobPlan, cluster: Cluster) -> str:
    """Say what is new in a job that runs; all of its services have the same labels."""
    service = cluster.stack(job.stack)[0]
    if service.label("kit.job-hash") != job.job_hash:
        return f"{job.job.file} has changed: it goes on from its checkpoint"
    if service.label("kit.inventory-hash") != job.inventory_hash:
        return "the inventory has changed: services with changes go on from the checkpoint"
    return "its file has changed: services with changes go on from the checkpoint"


def _forget(job: JobPlan) -> Iterator[Step]:
    keys = {mount.source for mount in job.mounts if mount.target == CHECKPOINTS}
    own = tuple(v.name for v in job.volumes if v.key in keys and not v.nfs_address)
    if not own:
        raise KitError(
            f"job {job.name} keeps its checkpoints in a folder of yours",
            "move them away by hand to begin anew",
        )
    for placement in job.placements:
        host = placement.host
        what = f"delete the volume {', '.join(own)}"
        yield ForgetCheckpoints(host.name, what, "--fresh", host, own)
