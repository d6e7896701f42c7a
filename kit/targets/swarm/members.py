"""Membership of the Swarm: from the plan and the current state to the steps. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network

from kit.errors import KitError, once
from kit.model import Host
from kit.plan.work import Plan, managers_of
from kit.runtime.steps import Step
from kit.targets.lowered import Lowered
from kit.targets.swarm.labels import DATA_LABEL, HOST_LABEL, JOB_LABEL, node_labels
from kit.targets.swarm.monitoring import MONITORING
from kit.targets.swarm.names import monitoring_secret, monitoring_stack, network_name
from kit.targets.swarm.platform import PLATFORM
from kit.targets.swarm.state import Cluster, Member, Node
from kit.targets.swarm.steps import (
    JOINED_LABEL,
    DeleteHistory,
    DeployStack,
    Init,
    Join,
    Leave,
    MakeSecret,
    Promote,
    RemoveNode,
    RemoveStack,
    SetHeartbeat,
    key_step,
    label_step,
    obsolete_labels,
    stack_cause,
)
from kit.values import count

OLDEST = (25, 0, 3)
"""The first engine whose Swarm accepts counts of named GPUs in a stack file (moby PR 47224)."""


def steps_up(
    lowered: Lowered,
    members: Mapping[str, Member],
    cluster: Cluster | None,
    platform: str | None,
    monitoring: str | None = None,
) -> list[Step]:
    """Return the steps that change the Swarm to the plan.

    `platform` and `monitoring` are the hashes of these files, or None if there is none.

    Raises:
        KitError: Hosts are in another Swarm, or cannot take part in their current state.
    """
    plan = lowered.plan
    wanted = managers_of(plan.hosts)
    _refuse(plan, members, cluster)
    steps: list[Step] = []
    if cluster is None:
        why = "no host of the inventory is a manager yet"
        steps.append(Init(wanted[0].name, "begin a swarm", why, wanted[0]))
    if cluster is None or cluster.heartbeat != plan.heartbeat:
        steps.append(_heartbeat(plan, cluster))
    node_ids = {node.id for node in cluster.nodes} if cluster else set()
    for host in plan.hosts:
        first = cluster is None and host is wanted[0]
        if not first and members[host.name].node not in node_ids:
            steps.append(_join(host, manager=host in wanted))
    if cluster is not None:
        steps += _promote(wanted, members, cluster)
        steps += _remove_nodes(members, cluster)
    steps += _labels(lowered, members, cluster)
    stack = f"{plan.cluster}-platform"
    services = cluster.stack(stack) if cluster else ()
    if platform is not None and (cause := stack_cause(services, platform)):
        network = f"network {network_name(plan)}" if plan.network.driver == "overlay" else ""
        served = plan.registry is not None and plan.registry.host is not None
        registry = f"registry on {plan.registry.host}" if plan.registry and served else ""
        steps += key_step(plan.cluster, cluster.secrets if cluster else ()) if plan.data else ()
        data = f"data services, stored on {plan.data.storage.name}" if plan.data else ""
        what = f"deploy {PLATFORM}: {', '.join(filter(None, (network, registry, data)))}"
        steps.append(DeployStack("swarm", what, cause, stack, PLATFORM))
    return [*steps, *_monitoring(plan, cluster, monitoring)]


def _monitoring(plan: Plan, cluster: Cluster | None, version: str | None) -> Iterator[Step]:
    stack = monitoring_stack(plan.cluster)
    if plan.monitoring is None or version is None:
        if cluster and cluster.stack(stack):
            yield RemoveStack("swarm", f"remove {stack}", "no `monitoring` in the inventory", stack)
        return
    secret = monitoring_secret(plan.cluster, plan.monitoring.password)
    if secret not in (cluster.secrets if cluster else ()):
        yield MakeSecret("swarm", f"make secret {secret}", "Grafana needs it", stack, secret)
    if cause := stack_cause(cluster.stack(stack) if cluster else (), version):
        what = f"deploy {MONITORING}: Prometheus, Grafana, exporters"
        yield DeployStack("swarm", what, cause, stack, MONITORING)


def _refuse(plan: Plan, members: Mapping[str, Member], cluster: Cluster | None) -> None:
    problems = [
        problem for host in plan.hosts for problem in _problems(members[host.name], cluster)
    ]
    problems += _overlaps(plan, cluster) if cluster else ()
    if problems:
        raise KitError(once(problems))


def _overlaps(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield the networks whose addresses overlap the plan's: Swarm would start no task there.

    Its allocator retries for ever, and reports this only in the log of the manager's engine.
    """
    own = ip_network(plan.network.subnet)
    for name, subnet in cluster.subnets if plan.network.driver == "overlay" else ():
        if name != network_name(plan) and own.overlaps(ip_network(subnet)):
            yield (
                f"network: subnet: {own} is in use by the network {name} of this Swarm ({subnet}); "
                "write another one into the inventory, or remove that network: "
                "`kit swarm down` of its cluster"
            )


def _problems(member: Member, cluster: Cluster | None) -> Iterator[str]:
    name = member.host.name
    version = tuple(int(part) for part in re.findall(r"\d+", member.version)[:3])
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield (
            f"{name}: Docker {member.version} cannot run tasks that reserve GPUs; "
            f"install {oldest} or newer, the same on all hosts"
        )
    known = cluster is not None and cluster.node(member.node) is not None
    if member.state == "locked":
        yield f"{name}: its swarm is locked; unlock it there: docker swarm unlock"
    elif member.state in {"active", "pending", "error"} and not known:
        where = ", ".join(member.managers) or member.error or "unknown managers"
        yield (
            f"{name}: is in another swarm already ({where}); "
            "if that one is no longer needed, there: docker swarm leave --force"
        )


def unlisted_nodes(members: Mapping[str, Member], cluster: Cluster | None) -> tuple[Node, ...]:
    """Return the nodes that kit added to the Swarm and that the inventory no longer names."""
    known = {member.node for member in members.values()} | set(members)
    nodes = cluster.nodes if cluster else ()
    joined = (node for node in nodes if node.label(JOINED_LABEL))
    return tuple(node for node in joined if node.id not in known and node.host not in known)


def warnings(
    plan: Plan, members: Mapping[str, Member], cluster: Cluster | None, tree: str
) -> list[str]:
    """Return the reasons why jobs will not start that kit cannot remove by itself."""
    reasons = [
        f"{node.name} is in the Swarm and not in the inventory: write it there, or take it out: "
        f"`docker swarm leave` on it, then `docker node rm --force {node.id[:12]}` on a manager"
        for node in unlisted_nodes(members, cluster)
    ]
    for host in plan.hosts:
        offered = members[host.name].gpus
        missing = [gpu.resource for gpu in host.gpus if gpu.resource not in offered]
        if missing:
            reasons.append(
                f"{host.name}: Docker does not offer {count(len(missing), 'GPU')} of "
                f"{len(host.gpus)} to Swarm ({missing[0]} for one): "
                f"kit host prepare {host.name} --run, or {tree}/hosts/{host.name}/prepare.sh there"
            )
    named = [host for host in plan.hosts if "manager" in host.roles]
    if left := named[len(managers_of(plan.hosts)) :]:
        reasons.append(
            f"{left[0].name} stays a worker: {len(named)} managers tolerate no more losses than "
            f"{len(named) - 1}"
        )
    return reasons


def _heartbeat(plan: Plan, cluster: Cluster | None) -> SetHeartbeat:
    cause = (
        f"it is {cluster.heartbeat:g} s"
        if cluster
        else "Docker's own 5 s miss a dead node for 14 s"
    )
    what = f"heartbeat of {plan.heartbeat} s"
    return SetHeartbeat("swarm", what, cause, plan.heartbeat)


def _join(host: Host, *, manager: bool) -> Join:
    role = "manager" if manager else "worker"
    return Join(host.name, f"join as {role}", "it is in no swarm", host, manager)


def _promote(
    wanted: Sequence[Host], members: Mapping[str, Member], cluster: Cluster
) -> Iterator[Promote]:
    workers = {node.id for node in cluster.nodes if not node.manager}
    for host in wanted:
        if members[host.name].node in workers:
            cause = "it has the role manager and is a worker"
            yield Promote(host.name, "make it a manager", cause, members[host.name].node)


def _remove_nodes(members: Mapping[str, Member], cluster: Cluster) -> Iterator[RemoveNode]:
    for node in cluster.nodes:
        member = members.get(node.host or "")
        if member and not node.ready and node.id != member.node:
            cause = "the host has joined again as another node"
            yield RemoveNode(node.name, f"remove the old node {node.id[:12]}", cause, node.id)


def _labels(
    lowered: Lowered, members: Mapping[str, Member], cluster: Cluster | None
) -> Iterator[Step]:
    nodes = {node.id: node for node in cluster.nodes} if cluster else {}
    placed = [each for each in lowered.workloads if each.parts]
    for host, labels in node_labels(lowered.plan.hosts, placed, lowered.plan.data).items():
        node = nodes.get(members[host].node)
        wanted: dict[str, str | None] = dict(labels)
        if node is not None and cluster is not None:
            # Labels in use are left to `kit deploy`, which waits until the task has ended.
            wanted = {name: value for name, value in labels if not _in_use(name, node, cluster)}
            wanted |= obsolete_labels(node, dict(labels), cluster)
        step = label_step(host, node, wanted)
        if step is not None:
            yield step


def _in_use(name: str, node: Node, cluster: Cluster) -> bool:
    """Return whether the node has the label of a workload whose stack runs."""
    owner = name.removeprefix(JOB_LABEL) if name.startswith(JOB_LABEL) else ""
    return node.label(name) is not None and bool(cluster.of(owner))


def steps_down(
    plan: Plan, members: Mapping[str, Member], cluster: Cluster, remembered: int
) -> list[Step]:
    """Return the steps that remove kit's stacks, labels and the nodes that it added.

    `remembered` is the number of deployments in the Swarm's history.

    Raises:
        KitError: Jobs still run.
    """
    jobs = sorted({s.owner for s in cluster.services if s.owner is not None})
    if jobs:
        raise KitError(f"still deployed: {', '.join(jobs)}", f"end them: kit stop {' '.join(jobs)}")
    steps: list[Step] = []
    # The network of the platform must be free of other stacks first.
    for stack in (monitoring_stack(plan.cluster), f"{plan.cluster}-platform"):
        if cluster.stack(stack):
            steps.append(RemoveStack("swarm", f"remove {stack}", "kit swarm up deployed it", stack))
    by_node = {member.node: member for member in members.values() if member.node}
    leaving: list[tuple[Node, Member]] = []
    for node in cluster.nodes:
        member = by_node.get(node.id)
        if member and node.label(JOINED_LABEL):
            leaving.append((node, member))
            continue
        own = {
            name: None
            for name, _ in node.labels
            if name in {HOST_LABEL, DATA_LABEL} or name.startswith(JOB_LABEL)
        }
        step = label_step(node.name, node, own)
        if step is not None:
            steps.append(step)
    if remembered:
        what = f"forget {count(remembered, 'deployment')}"
        steps.append(DeleteHistory("swarm", what, "kit deploy recorded them"))
    return steps + _leave(leaving, cluster)


def _leave(leaving: Sequence[tuple[Node, Member]], cluster: Cluster) -> list[Step]:
    """Remove workers, then managers; keep one manager if nodes remain that kit did not add."""
    in_order = sorted(leaving, key=lambda pair: pair[0].manager)
    everybody = len(leaving) == len(cluster.nodes)
    staying = sum(node.manager for node in cluster.nodes) - sum(node.manager for node, _ in leaving)
    if not everybody and not staying:
        in_order = in_order[:-1]
    cause = "`kit swarm up` added it"
    return [
        Leave(
            node.name,
            "leave the swarm",
            cause,
            member.host,
            node.manager,
            last=everybody and index == len(in_order),
        )
        for index, (node, member) in enumerate(in_order, 1)
    ]
