"""The GPUs that no job has, and the choice among them for a job that wants a number of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kit.model import Inventory, JobHosts, Use
from kit.plan.work import JobPlan
from kit.values import WrongValueError, count

Free = Mapping[str, Sequence[str]]
"""The ids of GPUs by host."""


def free_gpus(inventory: Inventory, jobs: Iterable[JobPlan]) -> dict[str, list[str]]:
    """Return the GPUs for training that no job has, by host, in the inventory's order.

    GPUs of the queue count as free: its jobs release them for other jobs.
    """
    taken = {
        (placement.host.name, gpu.id)
        for job in jobs
        if not job.job.queue
        for placement in job.placements
        for gpu in placement.gpus
    }
    free = {
        host.name: [
            gpu.id
            for gpu in host.gpus
            if gpu.use is Use.TRAINING and (host.name, gpu.id) not in taken
        ]
        for host in inventory.hosts
    }
    return {name: gpus for name, gpus in free.items() if gpus}


def choose(free: Free, hosts: int | None, gpus: int | None) -> JobHosts:
    """Choose the same number of free GPUs on each host: on as few and as small hosts as possible.

    Without `gpus`, each of the `hosts` gives the number that all of them have. Without both, one
    GPU is chosen. The job names its GPUs, so that it moves no other job, and no job moves it.

    Raises:
        WrongValueError: There are too few, or they cannot be divided evenly.
    """
    numbers = {name: len(ids) for name, ids in free.items()}
    if hosts is not None and gpus is None:
        most = sorted(numbers.values(), reverse=True)[:hosts]
        gpus = hosts * most[-1] if len(most) == hosts else hosts
    gpus = gpus or 1
    for number in [hosts] if hosts is not None else range(1, gpus + 1):
        each, rest = divmod(gpus, number)
        able = sorted((name for name in free if numbers[name] >= each), key=numbers.__getitem__)
        if each and not rest and len(able) >= number:
            chosen = [name for name in free if name in able[:number]]
            ids = tuple((name, tuple(free[name][:each])) for name in chosen)
            return JobHosts(tuple(chosen), None, None, ids)
    on = f" on {count(hosts, 'host')}" if hosts is not None else ""
    there = ", ".join(f"{name} {number}" for name, number in numbers.items()) or "none"
    what = f"{count(gpus, 'GPU')}{on}, the same number on each host, are not free"
    raise WrongValueError(what, f"free are: {there}; the jobs of the folder have the others")
