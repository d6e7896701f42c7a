"""The GPUs that no job has, and the choice among them for a job that wants a number of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kit.model import Inventory, JobHosts, Use
from kit.plan.work import JobPlan
from kit.values import WrongValueError, count


def free_gpus(inventory: Inventory, jobs: Iterable[JobPlan]) -> dict[str, int]:
    """Return the number of GPUs for training that no job has, by host, in the inventory's order."""
    free = {
        host.name: sum(gpu.use is Use.TRAINING for gpu in host.gpus) for host in inventory.hosts
    }
    for job in jobs:
        for placement in job.placements:
            free[placement.host.name] -= len(placement.gpus)
    return {name: number for name, number in free.items() if number > 0}


def choose(free: Mapping[str, int], hosts: int | None, gpus: int | None) -> JobHosts:
    """Choose hosts with as many free GPUs each: as few hosts as can be, and of these the smallest.

    Without a number of `gpus`, each of the `hosts` gives what all of them have; without both, one
    GPU is chosen.

    Raises:
        WrongValueError: There are too few, or they cannot be divided evenly.
    """
    if hosts is not None and gpus is None:
        most = sorted(free.values(), reverse=True)[:hosts]
        gpus = hosts * most[-1] if len(most) == hosts else hosts
    gpus = gpus or 1
    numbers = [hosts] if hosts is not None else range(1, gpus + 1)
    for number in numbers:
        each, rest = divmod(gpus, number)
        able = sorted((name for name in free if free[name] >= each), key=lambda name: free[name])
        if each and not rest and len(able) >= number:
            chosen = set(able[:number])
            return JobHosts(tuple(name for name in free if name in chosen), each, None)
    on = f" on {count(hosts, 'host')}" if hosts is not None else ""
    there = ", ".join(f"{name} {number}" for name, number in free.items()) or "none"
    what = f"{count(gpus, 'GPU')}{on}, the same number on each host, are not free"
    raise WrongValueError(what, f"free are: {there}; the jobs of the folder have the others")
