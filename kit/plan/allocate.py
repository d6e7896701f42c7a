"""Who gets which GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kit import ranges
from kit.errors import Fault, nearest
from kit.model import Host, Inventory, Job, JobHosts, Server, Use
from kit.plan.types import Placement
from kit.values import WrongValueError, count, show_size

_Key = tuple[str, str]
"""A GPU: its host's name and its id."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What somebody wants: the `kind` is `job` or `server`."""

    kind: str
    name: str
    use: Use
    hosts: JobHosts

    @property
    def who(self) -> str:
        """How it is called where another one wants the same."""
        return f"{self.kind} {self.name}" if self.kind == "job" else self.name


@dataclass
class _Claims:
    """Who has which GPU, and what was wrong on the way."""

    by_name: dict[str, Host]
    interface: str | None
    owner: dict[_Key, _Wish] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def refuse(self, wish: _Wish, place: tuple[str | int, ...], what: str, fix: str) -> None:
        """Write a mistake down."""
        self.faults.append(Fault(wish.name, place, what, fix))


Placements = list[tuple[Placement, ...]]


def allocate(
    inventory: Inventory, jobs: Sequence[Job], servers: Sequence[Server]
) -> tuple[Placements, Placements, list[Fault]]:
    """Give every job and every server its GPUs, in their order and in that of the inventory.

    Each takes all GPUs for its use of its hosts, or `gpus_per_host` of those that are still free.
    A server for which there is none gets none.
    """
    claims = _Claims({host.name: host for host in inventory.hosts}, inventory.network.interface)
    training = [_place_job(job, claims) for job in jobs]
    serving = [_place_server(server, claims) for server in servers]
    return training, serving, claims.faults


def _place_job(job: Job, claims: _Claims) -> tuple[Placement, ...]:
    wish = _Wish("job", job.name, Use.TRAINING, job.hosts)
    hosts = _hosts(wish, claims)
    if hosts and (idle := next((host for host in hosts if not _gpus(host, wish.use)), None)):
        place = ("hosts", "names", _named_by(wish, idle.name))
        what = f"{idle.name} has no GPU for training"
        claims.refuse(wish, place, what, "leave it out, or set `use: training`")
        return ()
    placements = _placements(wish, hosts, claims)
    fewest = job.hosts.fewest
    if hosts and fewest is not None and fewest > len(hosts):
        what = f"the job wants at least {count(fewest, 'host')}, {len(hosts)} can take part"
        fix = "write 1" if len(hosts) == 1 else f"write a number from 1 to {len(hosts)}"
        claims.refuse(wish, ("hosts", "min"), what, fix)
    return placements


def _place_server(server: Server, claims: _Claims) -> tuple[Placement, ...]:
    wish = _Wish("server", server.name, Use.INFERENCE, server.hosts)
    hosts = [host for host in _hosts(wish, claims) if _gpus(host, wish.use)]
    placements = _placements(wish, hosts, claims)
    for placement in placements:
        small = _too_small(server, placement)
        if small:
            claims.refuse(wish, ("gpu_memory",), small, "write less, or give it a larger GPU")
    return placements


def _too_small(server: Server, placement: Placement) -> str:
    devices = set(placement.devices)
    for gpu in placement.host.gpus:
        known = gpu.id in devices and gpu.memory is not None and server.gpu_memory is not None
        if known and (gpu.memory or 0) < (server.gpu_memory or 0):
            name = gpu.model or gpu.id
            return f"{name} of {placement.host.name} has {show_size(gpu.memory or 0)}"
    return ""


def _placements(wish: _Wish, hosts: Iterable[Host], claims: _Claims) -> tuple[Placement, ...]:
    placements: list[Placement] = []
    rank = 0
    for host in hosts:
        devices = _devices(wish, host, claims)
        if devices is None:
            return ()
        whole = len(devices) == len(host.gpus)
        interface = host.interface or claims.interface
        placements.append(Placement(host, rank, devices, whole, interface))
        rank += len(devices)
    return tuple(placements)


def _gpus(host: Host, use: Use) -> list[str]:
    return [gpu.id for gpu in host.gpus if gpu.use is use]


def _named_by(wish: _Wish, host: str) -> int:
    """Return which of the names that were written means a host."""
    for index, pattern in enumerate(wish.hosts.names):
        if host == pattern or (ranges.is_range(pattern) and host in ranges.expand(pattern)):
            return index
    raise AssertionError(host)


def _hosts(wish: _Wish, claims: _Claims) -> list[Host]:
    """Return the hosts that are named, or all with a GPU for the use."""
    if not wish.hosts.names:
        hosts = [host for host in claims.by_name.values() if _gpus(host, wish.use)]
        if not hosts and wish.use is Use.TRAINING:
            fix = "give a host `gpus:` in the inventory, or set `use: training`"
            claims.refuse(wish, (), "no host has a GPU for training", fix)
        return hosts
    wanted: set[str] = set()
    for index, pattern in enumerate(wish.hosts.names):
        place = ("hosts", "names", index)
        try:
            names = ranges.expand(pattern) if ranges.is_range(pattern) else [pattern]
        except WrongValueError as error:
            claims.refuse(wish, place, error.what, error.fix)
            return []
        unknown = next((name for name in names if name not in claims.by_name), None)
        if unknown is not None:
            what = f"{unknown} is not in the inventory"
            claims.refuse(wish, place, what, nearest(unknown, list(claims.by_name)[:1000]))
            return []
        wanted.update(names)
    return [host for host in claims.by_name.values() if host.name in wanted]


def _devices(wish: _Wish, host: Host, claims: _Claims) -> tuple[str, ...] | None:
    ours = _gpus(host, wish.use)
    taken = [device for device in ours if (host.name, device) in claims.owner]
    count = wish.hosts.gpus_per_host
    if count is None and taken:
        owner = claims.owner[host.name, taken[0]]
        claims.faults.append(_overlap(wish, owner, host, taken[0]))
        return None
    free = [device for device in ours if device not in taken]
    if count is not None and count > len(free):
        claims.faults.append(_too_few(wish, host, ours, taken, claims))
        return None
    chosen = free if count is None else free[:count]
    for device in chosen:
        claims.owner[host.name, device] = wish
    return tuple(chosen)


def _overlap(wish: _Wish, owner: _Wish, host: Host, device: str) -> Fault:
    gpu = device if not device.isdigit() else f"GPU {device}"
    which = "" if wish.use is Use.TRAINING else f" for {wish.use}"
    what = f"wants all GPUs{which} of {host.name}, but {gpu} is already with {owner.who} ({{line}})"
    fix = "give each its own hosts (`hosts: {names: …}`) or a share (`hosts: {gpus_per_host: 1}`)"
    return Fault(wish.name, ("hosts",), what, fix, ("hosts",), owner.name)


def _too_few(wish: _Wish, host: Host, ours: list[str], taken: list[str], claims: _Claims) -> Fault:
    place = ("hosts", "gpus_per_host")
    wanted = count(wish.hosts.gpus_per_host or 0, "GPU")
    what = f"wants {wanted} on {host.name}, which has {len(ours)} for {wish.use}"
    fix = "write a smaller number, or name the hosts that have as many (`hosts: {names: …}`)"
    if not taken:
        return Fault(wish.name, place, what, fix)
    owner = claims.owner[host.name, taken[0]]
    what += f", {len(taken)} of them with {owner.who} ({{line}})"
    return Fault(wish.name, place, what, fix, ("hosts",), owner.name)
