"""The check that each container sees the GPUs that the plan gives it.

It compares the GPUs in the rendered files, those given to a container, and those visible in it. The
last two must be equal. The first two may differ between a render and its deploy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from kit.runtime.status import ENDED, HostStatus, JobStatus, State
from kit.values import count, names_gpu


def wrong_gpus(statuses: Sequence[JobStatus], names: Collection[str] = ()) -> tuple[str, ...]:
    """Report containers that see other GPUs than assigned, and GPUs that two containers see.

    Containers that have not reported their GPUs yet are skipped. If `names` is not empty, only
    these workloads are checked.
    """
    living = [status for status in statuses if status.state not in ENDED]
    selected = [status for status in living if not names or status.job in names]
    return (*_mismatched(selected), *_shared(living, names))


def _mismatched(statuses: Sequence[JobStatus]) -> Iterator[str]:
    for status in statuses:
        for host in status.hosts:
            if host.state not in ENDED and host.seen and (difference := _difference(host)):
                yield f"{status.job} on {host.host} {difference}"


def _difference(host: HostStatus) -> str:
    if _alike(host.devices, host.seen):
        return ""
    return f"sees {', '.join(host.seen)}, but was given {_gpu_names(host.devices, host.seen)}"


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether GPUs match; without UUIDs only their number can be compared."""
    if "all" in {*one, *other}:
        return bool(one and other)
    if _named(one) and _named(other):
        return {gpu.lower() for gpu in one} == {gpu.lower() for gpu in other}
    return len(one) == len(other)


def _named(devices: Sequence[str]) -> bool:
    return all(map(names_gpu, devices))


def _gpu_names(devices: Sequence[str], beside: Sequence[str]) -> str:
    """Name GPUs by UUID if both sides have UUIDs, otherwise by number."""
    if not devices:
        return "none"
    if "all" in devices:
        return "all GPUs"
    both = _named(devices) and _named(beside)
    return ", ".join(devices) if both else count(len(devices), "GPU")


def not_deployed(
    statuses: Sequence[JobStatus], planned: Mapping[str, Mapping[str, Sequence[str]]]
) -> tuple[str, ...]:
    """Report workloads whose GPUs differ from the rendered files; `planned` is by job and host."""
    return tuple(
        f"{status.job}: {'; '.join(moves)}"
        for status in statuses
        if status.state not in ENDED and status.job in planned
        if (moves := list(_moves(status, planned[status.job])))
    )


def _moves(status: JobStatus, planned: Mapping[str, Sequence[str]]) -> Iterator[str]:
    running = [host for host in status.hosts if host.state is State.RUNNING and host.devices]
    has = {host.host: host.devices for host in running}
    # Hosts that wait or have ended report their own reason for having no GPU.
    others = {host.host for host in status.hosts} - has.keys()
    for name in sorted((has.keys() | planned.keys()) - others):
        now, then = has.get(name, ()), planned.get(name, ())
        if not _alike(now, then):
            yield f"{name} has {_gpu_names(now, then)}, the files give it {_gpu_names(then, now)}"


def _shared(statuses: Sequence[JobStatus], names: Collection[str]) -> Iterator[str]:
    owners: dict[tuple[str, str], list[str]] = {}
    for status in statuses:
        for host in status.hosts:
            for uuid in host.seen if host.state not in ENDED else ():
                owners.setdefault((host.host, uuid), []).append(status.job)
    for (name, uuid), jobs in owners.items():
        if len(jobs) > 1 and (not names or not {*names}.isdisjoint(jobs)):
            yield f"{uuid} on {name} is seen by {' and '.join(jobs)}"
