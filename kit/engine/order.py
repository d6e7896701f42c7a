"""In which order work is deployed, so that a GPU is free before somebody else gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.plan.work import Work

Gpu = tuple[str, str]
"""A host and the name of a GPU on it, as Swarm has it: a UUID, or `gpu0`."""


def gpus_of(work: Work) -> set[Gpu]:
    """Return the GPUs that the plan gives to a job or a server."""
    return {
        (placement.host.name, named(device))
        for placement in work.placements
        for device in placement.devices
    }


def named(device: str) -> str:
    """Return the name of a GPU that may be known by its index alone."""
    return f"gpu{device}" if device.isdigit() else device


def in_order(work: Sequence[Work], held: Mapping[Gpu, str]) -> tuple[list[Work], set[str]]:
    """Put those that let go of GPUs before those that get them; `held` names who has which.

    Where they wait for each other, as when two swap, the names are returned of those that must
    end before any of them starts.
    """
    names = {each.name for each in work}
    waits = {
        each.name: {held[gpu] for gpu in gpus_of(each) if gpu in held} & names - {each.name}
        for each in work
    }
    ordered: list[Work] = []
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
