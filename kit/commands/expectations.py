"""From a lowered plan to what the doctor expects of the hosts."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from kit.doctor.facts import Wanted
from kit.doctor.wanted import wanted_of
from kit.model import EngineName
from kit.paths import Paths
from kit.plan.data import Sizes
from kit.plan.work import managers_of
from kit.targets.lowered import Lowered


def expectations(
    lowered: Lowered,
    paths: Paths,
    names: Collection[str] | None = None,
    sizes: Sizes = MappingProxyType({}),
) -> Wanted:
    """Return what the doctor expects of the hosts; `names` are the jobs and servers (None: all).

    `sizes` are those of the stored data sets, as far as they are known.
    """
    from kit.targets.swarm.labels import node_labels
    from kit.targets.swarm.names import network_name

    plan = lowered.plan
    swarm = lowered.engine is EngineName.SWARM
    placed = [each for each in lowered.workloads if each.parts]
    return wanted_of(
        plan,
        [each for each in placed if names is None or each.name in names],
        swarm=swarm,
        tree=str(paths.tree(lowered.cluster)),
        managers=managers_of(plan.hosts) if swarm else (),
        labels=node_labels(plan.hosts, placed, plan.data) if swarm else {},
        overlay=network_name(plan) if swarm and plan.network.driver == "overlay" else "",
        ports=lowered.ports,
        sizes=sizes,
    )
