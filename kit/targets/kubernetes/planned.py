"""The steps of a deploy: what the namespace has, compared with the rendered objects."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtime.steps import Step
from kit.targets.kubernetes.decide import Wanted, decide, decide_shared
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.names import shared_stack
from kit.targets.kubernetes.observe import Objects, by_hand, observe, wanted_of
from kit.workload.types import Workload


def planned(
    kubectl: Kubectl,
    cluster: str,
    workloads: Sequence[Workload],
    objects: Objects,
    *,
    fresh: bool,
) -> tuple[Step, ...]:
    """Return the steps that bring these workloads up to date; see `decide`."""
    found = observe(kubectl, cluster)
    wanted = {}
    for each in workloads:
        if each.parts:
            want = wanted_of(objects[each.stack])
            same = [one.file == want.version for one in found.working(each.stack)]
            hand = by_hand(kubectl, objects[each.stack]) if same and all(same) else ""
            wanted[each.stack] = Wanted(want.version, want.objects, hand)
    shared = shared_stack(cluster)
    common = wanted_of(objects[shared]) if shared in objects else None
    return (
        *decide(workloads, found, wanted, fresh=fresh),
        *decide_shared(shared, found, common),
    )
