"""The order of a deploy, so that GPUs are released before they are reassigned. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.workload.types import Kind, Workload

Gpu = tuple[str, str]
"""A host, and the name of its GPU in Swarm."""


def gpus_of(work: Workload) -> set[Gpu]:
    """Return the GPUs of a workload in the plan; the queue decides which ones its jobs have."""
    if work.queue:
        return set()
    return {
        (placement.host.name, gpu.resource)
        for placement in work.placements
        for gpu in placement.gpus
    }


def in_order(work: Sequence[Workload], held: Mapping[Gpu, str]) -> tuple[list[Workload], set[str]]:
    """Put workloads that release GPUs before those that get them; `held` is each GPU's owner.

    If workloads wait for each other, for example to swap GPUs, also return the names of those that
    must end before any of them starts: trainings rather than servers, which have clients.
    """
    names = {each.name for each in work}
    servers = {each.name for each in work if each.kind is Kind.SERVER}
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
            circle = _cycle(left[0].name, waits, done)
            first.add(min(circle, key=lambda name: (name in servers, name)))
            continue
        ordered.append(free)
        left.remove(free)
    return ordered, first


def _cycle(begin: str, waits: Mapping[str, set[str]], done: set[str]) -> set[str]:
    """Return the workloads that wait for each other, among those for which `begin` waits."""

    def awaited(name: str) -> set[str]:
        names: set[str] = set()
        left = waits[name] - done
        while left:
            names |= left
            left = {each for one in left for each in waits[one]} - done - names
        return names

    return {name for name in awaited(begin) if name in awaited(name)}
