"""Who gets which GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kit import ranges
from kit.errors import Fault, nearest
from kit.model import Host, Inventory, Job, Use
from kit.plan.types import Placement
from kit.values import WrongValueError, count

_Key = tuple[str, str]
"""A GPU: its host's name and its id."""


@dataclass
class _Claims:
    """Which job has which GPU, and what was wrong on the way."""

    owner: dict[_Key, Job] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def allocate(
    inventory: Inventory, jobs: Sequence[Job]
) -> tuple[list[tuple[Placement, ...]], list[Fault]]:
    """Give every job its GPUs, in the order of the jobs and of the inventory.

    A job takes all GPUs for training of its hosts, or `gpus_per_host` of those that are still free.
    """
    claims = _Claims()
    by_name = {host.name: host for host in inventory.hosts}
    default = inventory.network.interface
    placements = [_place(job, by_name, default, claims) for job in jobs]
    return placements, claims.faults


def _place(
    job: Job, by_name: dict[str, Host], interface: str | None, claims: _Claims
) -> tuple[Placement, ...]:
    hosts = _hosts(job, by_name, claims.faults)
    if not hosts:
        return ()
    placements: list[Placement] = []
    rank = 0
    for host in hosts:
        devices = _devices(job, host, claims)
        if devices is None:
            return ()
        whole = len(devices) == len(host.gpus)
        placements.append(Placement(host, rank, devices, whole, host.interface or interface))
        rank += len(devices)
    fewest = job.hosts.fewest
    if fewest is not None and fewest > len(hosts):
        what = f"the job wants at least {count(fewest, 'host')}, {len(hosts)} can take part"
        fix = "write 1" if len(hosts) == 1 else f"write a number from 1 to {len(hosts)}"
        claims.faults.append(Fault(job.name, ("hosts", "min"), what, fix))
    return tuple(placements)


def _training(host: Host) -> list[str]:
    return [gpu.id for gpu in host.gpus if gpu.use is Use.TRAINING]


def _hosts(job: Job, by_name: dict[str, Host], faults: list[Fault]) -> list[Host]:
    if not job.hosts.names:
        hosts = [host for host in by_name.values() if _training(host)]
        if not hosts:
            fix = "give a host `gpus:` in the inventory, or set `use: training`"
            faults.append(Fault(job.name, (), "no host has a GPU for training", fix))
        return hosts
    wanted: dict[str, int] = {}
    for index, pattern in enumerate(job.hosts.names):
        loc = ("hosts", "names", index)
        try:
            names = ranges.expand(pattern) if ranges.is_range(pattern) else [pattern]
        except WrongValueError as error:
            faults.append(Fault(job.name, loc, error.what, error.fix))
            return []
        unknown = next((name for name in names if name not in by_name), None)
        if unknown is not None:
            what = f"{unknown} is not in the inventory"
            faults.append(Fault(job.name, loc, what, nearest(unknown, list(by_name)[:1000])))
            return []
        idle = next((name for name in names if not _training(by_name[name])), None)
        if idle is not None:
            what = f"{idle} has no GPU for training"
            faults.append(Fault(job.name, loc, what, "leave it out, or set `use: training`"))
            return []
        wanted |= dict.fromkeys(names, index)
    return [host for host in by_name.values() if host.name in wanted]


def _devices(job: Job, host: Host, claims: _Claims) -> tuple[str, ...] | None:
    training = _training(host)
    taken = [device for device in training if (host.name, device) in claims.owner]
    count = job.hosts.gpus_per_host
    if count is None and taken:
        owner = claims.owner[host.name, taken[0]]
        claims.faults.append(_overlap(job, owner, host, taken[0]))
        return None
    free = [device for device in training if device not in taken]
    if count is not None and count > len(free):
        claims.faults.append(_too_few(job, host, training, taken, claims))
        return None
    chosen = free if count is None else free[:count]
    for device in chosen:
        claims.owner[host.name, device] = job
    return tuple(chosen)


def _overlap(job: Job, owner: Job, host: Host, device: str) -> Fault:
    gpu = device if not device.isdigit() else f"GPU {device}"
    what = f"wants all GPUs of {host.name}, but {gpu} is already with job {owner.name} ({{line}})"
    fix = "give each its own hosts (`hosts: {names: …}`) or a share (`hosts: {gpus_per_host: 1}`)"
    return Fault(job.name, ("hosts",), what, fix, ("hosts",), owner.name)


def _too_few(job: Job, host: Host, training: list[str], taken: list[str], claims: _Claims) -> Fault:
    loc = ("hosts", "gpus_per_host")
    wanted = count(job.hosts.gpus_per_host or 0, "GPU")
    what = f"wants {wanted} on {host.name}, which has {len(training)} for training"
    fix = "write a smaller number, or name the hosts that have as many (`hosts: {names: …}`)"
    if not taken:
        return Fault(job.name, loc, what, fix)
    owner = claims.owner[host.name, taken[0]]
    what += f", {len(taken)} of them with job {owner.name} ({{line}})"
    return Fault(job.name, loc, what, fix, ("hosts",), owner.name)
