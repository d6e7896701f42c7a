"""The steps of a deploy: what the namespace has, compared with the rendered objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit.runtime.steps import Step
from kit.targets.kubernetes.decide import Apply, EndJobs, Prune, Wanted, decide, decide_shared
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.names import shared_stack
from kit.targets.kubernetes.observe import Objects, by_hand, observe, resizes, title_of, wanted_of
from kit.targets.kubernetes.state import Object
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
    stacks = [each.stack for each in workloads if each.parts]
    wanted = {each: _compared(kubectl, found.working(each), objects[each]) for each in stacks}
    shared = shared_stack(cluster)
    common = wanted_of(objects[shared]) if shared in objects else None
    return (
        *decide(workloads, found, wanted, fresh=fresh),
        *decide_shared(shared, found, common),
    )


def _compared(
    kubectl: Kubectl, works: Sequence[Object], objects: Sequence[Mapping[str, Any]]
) -> Wanted:
    """Return what a file wants, with what Kubernetes says of it beside the objects that run."""
    want = wanted_of(objects)
    if {each.file for each in works} == {want.version}:
        return replace(want, by_hand=by_hand(kubectl, objects))
    return replace(want, resizes=resizes(kubectl, works, objects))


def checkable(steps: Sequence[Step], objects: Objects) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the objects that the API server can check before any of the steps is taken."""
    replaced = {step.stack for step in steps if isinstance(step, EndJobs)}
    ended = {title for step in steps if isinstance(step, Prune) for title in step.titles}
    for step in steps:
        # The API server would refuse another template of an existing Job.
        if isinstance(step, Apply) and step.stack not in replaced:
            # The webhook of a TrainJob needs its runtime, which a dry run does not create.
            yield [
                each
                for each in objects[step.stack]
                if each["kind"] != "TrainJob" and title_of(each) not in ended
            ]
