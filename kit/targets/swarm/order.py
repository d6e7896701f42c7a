"""In which order workloads are deployed, so that a GPU is free before it is reassigned. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.workload.types import Workload

Gpu = tuple[str, str]
"""A host, and the name by which it offers a GPU to Swarm."""


def gpus_of(work: Workload) -> set[Gpu]:
    """Return the GPUs that the plan gives to a workload."""
    return {
        (placement.host.name, gpu.resource)
        for placement in work.placements
        for gpu in placement.gpus
    }


def in_order(work: Sequence[Workload], held: Mapping[Gpu, str]) -> tuple[list[Workload], set[str]]:
    """Put those that release GPUs before those that get them; `held` names the owner of each.

    Where they wait for each other, as when two swap, the names are returned of those that must
    end before any of them starts.
    """
    names = {each.name for each in work}
    waits = {
        each.name: {held[gpu] for gpu in gpus_of(each) if gpu in held} & names - {each.name}
        for each in work
    }
    ordered: list[Workload] = []
    first: set[str] = set()
    left = list(work)
    while left:
        done = {each.name for each in ordered} | first
        free = next((each for each in left if waits[each.name] <= done), None)
        if free is None:
            first.add(min(waits[left[0].name] - done))
            continue
        ordered.append(free)
        left.remove(free)
    return ordered, first
