"""The allocation of GPUs to jobs and servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kit import ranges
from kit.errors import INVENTORY, Fault
from kit.jobs import Framework, Job
from kit.model import AUTO, Gpu, Host, Inventory, JobHosts, Use
from kit.plan.queue import PoolPlan, pool_plan
from kit.plan.types import Placement
from kit.servers import Server
from kit.values import WrongValueError, count, show_size
from trainer.contract.words import nearest

_Key = tuple[str, str]
"""A GPU: its host's name and its id."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A job's or a server's request for GPUs: the `kind` is `job` or `server`."""

    kind: str
    name: str
    use: Use
    hosts: JobHosts
    one_process: bool = False

    @property
    def title(self) -> str:
        """Return its name in messages about other requests for the same GPU."""
        return f"{self.kind} {self.name}" if self.kind == "job" else self.name


@dataclass
class _Ledger:
    """The owner of each GPU, and the mistakes found so far."""

    by_name: dict[str, Host]
    interface: str | None
    owner: dict[_Key, _Request] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def refuse(self, request: _Request, place: tuple[str | int, ...], what: str, fix: str) -> None:
        """Record a mistake."""
        self.faults.append(Fault(request.name, place, what, fix))


Placements = list[tuple[Placement, ...]]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts and GPUs of each job, its spares, each server, and the queue.

    Jobs of the queue have all GPUs that the queue may give them.
    """

    training: Placements
    spares: Placements
    serving: Placements
    pool: PoolPlan
    faults: list[Fault]


def allocate(inventory: Inventory, jobs: Sequence[Job], servers: Sequence[Server]) -> Allocation:
    """Assign GPUs to every job and every server, in their order and the inventory's order.

    Each request gets all GPUs of its use on its hosts, or `gpus_per_host` of the free ones. Jobs
    that name their GPUs come first, so that others never take these. The queue divides the GPUs
    that other jobs leave, and the GPUs of sessions while these do not run. A server gets no GPU if
    no host has one for inference. A job gets no spare if other jobs have taken all of them.
    """
    ledger = _Ledger({host.name: host for host in inventory.hosts}, inventory.network.interface)
    ordered = sorted(jobs, key=lambda job: not job.hosts.gpus)
    placed = {job.name: _place_job(job, ledger) for job in ordered if not job.queue}
    sessions = {job.name for job in jobs if job.session}
    fixed = {gpu for gpu, owner in ledger.owner.items() if owner.name not in sessions}
    pool = pool_plan(inventory, lambda host, gpu: (host, gpu) in fixed)
    placed |= {job.name: _place_queued(job, pool, ledger) for job in jobs if job.queue}
    training = [placed[job.name] for job in jobs]
    spares = [
        _place_spares(job, members, ledger) for job, members in zip(jobs, training, strict=True)
    ]
    serving = [_place_server(server, ledger) for server in servers]
    return Allocation(training, spares, serving, pool, [*_half_spares(inventory), *ledger.faults])


def _half_spares(inventory: Inventory) -> Iterator[Fault]:
    """Yield the hosts with GPUs for training and spare ones: a container has only one of them."""
    for host in inventory.hosts:
        if _gpus(host, Use.SPARE) and _gpus(host, Use.TRAINING):
            what = f"{host.name} has GPUs for training and spare ones, but a spare is a whole host"
            fix = "write `use: spare` or `use: training` for all of them"
            yield Fault(INVENTORY, (*host.loc, "gpus"), what, fix)


def _place_job(job: Job, ledger: _Ledger) -> tuple[Placement, ...]:
    alone = job.framework is Framework.TENSORFLOW
    request = _Request("job", job.name, Use.TRAINING, job.hosts, one_process=alone)
    named = _hosts(request, ledger)
    if job.hosts.gpus:
        return _placements(request, named, ledger)
    hosts = [host for host in named if _gpus(host, Use.TRAINING) or not _gpus(host, Use.SPARE)]
    if named and not hosts:
        what = "all hosts that it names are spares"
        ledger.refuse(request, ("hosts", "names"), what, "name a host with a GPU for training")
        return ()
    if hosts and (idle := next((host for host in hosts if not _gpus(host, request.use)), None)):
        place = ("hosts", "names", _named_by(request, idle.name))
        what = f"{idle.name} has no GPU for training"
        ledger.refuse(request, place, what, "leave it out, or set `use: training`")
        return ()
    placements = _placements(request, hosts, ledger)
    fewest = job.hosts.fewest
    if hosts and fewest is not None and fewest > len(hosts):
        what = f"the job wants at least {count(fewest, 'host')}, {len(hosts)} can take part"
        fix = "write 1" if len(hosts) == 1 else f"write a number from 1 to {len(hosts)}"
        ledger.refuse(request, ("hosts", "min"), what, fix)
    elif alone and fewest is not None and fewest < len(hosts):
        what = f"TensorFlow trains with all of its {len(hosts)} hosts or not at all"
        ledger.refuse(request, ("hosts", "min"), what, "leave it out")
    return placements


def _place_queued(job: Job, pool: PoolPlan, ledger: _Ledger) -> tuple[Placement, ...]:
    """Return the hosts that a job of the queue may ever use, with all GPUs that it may get."""
    request = _Request("job", job.name, Use.TRAINING, job.hosts)
    named = {host.name for host in _hosts(request, ledger)}
    each, found, rank = job.hosts.gpus_per_host, list[Placement](), 0
    for host, ids in pool.hosts:
        if host.name not in named or len(ids) < (each or 1):
            continue
        gpus = tuple(gpu for gpu in host.gpus if gpu.id in ids)[:each]
        if len(gpus) > 1 and any(gpu.instance for gpu in gpus):
            ledger.refuse(request, ("hosts",), *_several_instances(host, gpus))
            return ()
        found.append(_placement(request, host, rank, gpus, ledger, queued=True))
        rank += len(gpus)
    if named and not found:
        what = f"no host of the pool has {count(each or 1, 'GPU')} for it"
        ledger.refuse(request, ("hosts",), what, "see `kit plan`: other jobs have the GPUs")
    return tuple(found)


def _place_spares(job: Job, members: Sequence[Placement], ledger: _Ledger) -> tuple[Placement, ...]:
    """Return the spares of a job: those among its hosts, or all that no other job has taken.

    These have no spares: a divided model, whose parts are on the hosts that trained; scripts of
    TensorFlow, whose hosts are a fixed list; sessions, whose home is on their host; jobs of the
    queue; and jobs that name their GPUs.
    """
    alone = job.framework is Framework.TENSORFLOW or job.parallel.used or job.session or job.queue
    if not members or alone or job.hosts.gpus:
        return ()
    request = _Request("job", job.name, Use.SPARE, job.hosts)
    hosts = [host for host in _hosts(request, ledger) if _gpus(host, Use.SPARE)]
    if not job.hosts.names:
        hosts = [host for host in hosts if _enough_free(request, host, ledger)]
    rank = sum(member.processes for member in members)
    return tuple(
        replace(each, first_rank=each.first_rank + rank, spare=True)
        for each in _placements(request, hosts, ledger)
    )


def _enough_free(request: _Request, host: Host, ledger: _Ledger) -> bool:
    ours = _gpus(host, request.use)
    free = [gpu for gpu in ours if (host.name, gpu.id) not in ledger.owner]
    return len(free) >= (request.hosts.gpus_per_host or len(ours))


def _place_server(server: Server, ledger: _Ledger) -> tuple[Placement, ...]:
    alone = server.own is not None
    request = _Request("server", server.name, Use.INFERENCE, server.hosts, one_process=alone)
    hosts = [host for host in _hosts(request, ledger) if _gpus(host, request.use)]
    placements = _placements(request, hosts, ledger)
    for placement in placements:
        small = _too_small(server, placement)
        if small:
            ledger.refuse(request, ("gpu_memory",), small, "write less, or give it a larger GPU")
            break
    return placements


def _too_small(server: Server, placement: Placement) -> str:
    for gpu in placement.gpus:
        if gpu.memory is not None and gpu.memory < (server.gpu_memory or 0):
            return f"{gpu.model or gpu.id} of {placement.host.name} has {show_size(gpu.memory)}"
    return ""


def _placements(request: _Request, hosts: Iterable[Host], ledger: _Ledger) -> tuple[Placement, ...]:
    placements: list[Placement] = []
    rank = 0
    for host in hosts:
        gpus = _chosen(request, host, ledger)
        if gpus is None:
            return ()
        if len(gpus) > 1 and any(gpu.instance for gpu in gpus):
            ledger.refuse(request, ("hosts",), *_several_instances(host, gpus))
            return ()
        placement = _placement(request, host, rank, gpus, ledger)
        placements.append(placement)
        rank += placement.processes
    return tuple(placements)


def _placement(
    request: _Request,
    host: Host,
    rank: int,
    gpus: tuple[Gpu, ...],
    ledger: _Ledger,
    *,
    queued: bool = False,
) -> Placement:
    whole = len(gpus) == len(host.gpus)
    interface = host.interface or ledger.interface
    if interface == AUTO:
        interface = None
    alone = request.one_process
    return Placement(host, rank, gpus, whole, interface, one_process=alone, queued=queued)


def _several_instances(host: Host, gpus: Sequence[Gpu]) -> tuple[str, str]:
    """Explain why a container with a MIG instance cannot have a second GPU.

    CUDA shows a process one instance and no other GPU. NCCL treats the instances of a card as one
    GPU that was given twice (CUDA and MIG User Guides, "CUDA Device Enumeration").
    """
    names = ", ".join(gpu.title for gpu in gpus)
    what = f"{host.name} has {names} for one container, but CUDA shows only one MIG instance"
    fix = "write `hosts: {gpus_per_host: 1}`, and more jobs for more instances"
    return what, fix


def _gpus(host: Host, use: Use) -> list[Gpu]:
    return [gpu for gpu in host.gpus if gpu.use is use]


def _named_by(request: _Request, host: str) -> int:
    """Return the index of the name or range in the file that includes a host."""
    if host in request.hosts.names:
        return request.hosts.names.index(host)
    for index, pattern in enumerate(request.hosts.names):
        if ranges.is_range(pattern) and host in ranges.expand(pattern):
            return index
    raise AssertionError(host)


def _hosts(request: _Request, ledger: _Ledger) -> list[Host]:
    """Return the named hosts, or all hosts with a GPU for the use."""
    if not request.hosts.names:
        hosts = [host for host in ledger.by_name.values() if _gpus(host, request.use)]
        if not hosts and request.use is Use.TRAINING:
            fix = "give a host `gpus:` in the inventory, or set `use: training`"
            ledger.refuse(request, (), "no host has a GPU for training", fix)
        return hosts
    wanted: set[str] = set()
    for index, pattern in enumerate(request.hosts.names):
        at = ("gpus", pattern) if request.hosts.gpus else ("names", index)
        place: tuple[str | int, ...] = ("hosts", *at)
        try:
            names = ranges.expand(pattern) if ranges.is_range(pattern) else [pattern]
        except WrongValueError as error:
            ledger.refuse(request, place, error.what, error.fix)
            return []
        unknown = next((name for name in names if name not in ledger.by_name), None)
        if unknown is not None:
            what = f"{unknown} is not in the inventory"
            ledger.refuse(request, place, what, nearest(unknown, list(ledger.by_name)[:1000]))
            return []
        wanted.update(names)
    return [host for host in ledger.by_name.values() if host.name in wanted]


def _chosen(request: _Request, host: Host, ledger: _Ledger) -> tuple[Gpu, ...] | None:
    if request.hosts.gpus:
        return _named_gpus(request, host, ledger)
    ours = _gpus(host, request.use)
    taken = [gpu for gpu in ours if (host.name, gpu.id) in ledger.owner]
    count = request.hosts.gpus_per_host
    if count is None and taken:
        owner = ledger.owner[host.name, taken[0].id]
        ledger.faults.append(_overlap(request, owner, host, taken[0]))
        return None
    free = [gpu for gpu in ours if gpu not in taken]
    if count is not None and count > len(free):
        ledger.faults.append(_too_few(request, host, ours, taken, ledger))
        return None
    chosen = free if count is None else free[:count]
    for gpu in chosen:
        ledger.owner[host.name, gpu.id] = request
    return tuple(chosen)


def _named_gpus(request: _Request, host: Host, ledger: _Ledger) -> tuple[Gpu, ...] | None:
    """Return the GPUs of a host that the file names."""
    known = {gpu.id: gpu for gpu in host.gpus}
    free = [gpu.id for gpu in _gpus(host, request.use) if (host.name, gpu.id) not in ledger.owner]
    instead = f"write some of {', '.join(free)}" if free else f"leave {host.name} out: none is free"
    chosen = []
    section = request.hosts.names[_named_by(request, host.name)]
    for index, wanted in enumerate(dict(request.hosts.gpus)[section]):
        place, gpu = ("hosts", "gpus", section, index), known.get(wanted)
        owner = ledger.owner.get((host.name, wanted))
        if gpu is None:
            ledger.refuse(request, place, f"{host.name} has no GPU {wanted}", instead)
        elif gpu.use is not request.use:
            what = f"{gpu.title} of {host.name} is not for training"
            ledger.refuse(request, place, what, f"{instead}, or set `use: training`")
        elif owner:
            what = f"{gpu.title} of {host.name} is already assigned to {owner.title} ({{line}})"
            fault = Fault(request.name, place, what, instead, ("hosts",), owner.name)
            ledger.faults.append(fault)
        else:
            ledger.owner[host.name, wanted] = request
            chosen.append(gpu)
            continue
        return None
    return tuple(chosen)


def _overlap(request: _Request, owner: _Request, host: Host, gpu: Gpu) -> Fault:
    taken = f"{gpu.title} is already assigned to {owner.title} ({{line}})"
    which = {Use.TRAINING: "GPUs", Use.SPARE: "spare GPUs"}.get(request.use, "GPUs for inference")
    what = f"wants all {which} of {host.name}, but {taken}"
    fix = "give each its own hosts (`hosts: {names: …}`) or a share (`hosts: {gpus_per_host: 1}`)"
    return Fault(request.name, ("hosts",), what, fix, ("hosts",), owner.name)


def _too_few(
    request: _Request, host: Host, ours: list[Gpu], taken: list[Gpu], ledger: _Ledger
) -> Fault:
    place = ("hosts", "gpus_per_host")
    wanted = count(request.hosts.gpus_per_host or 0, "GPU")
    which = "spare" if request.use is Use.SPARE else f"for {request.use}"
    what = f"wants {wanted} on {host.name}, which has {len(ours)} {which}"
    fix = "write a smaller number, or name the hosts that have as many (`hosts: {names: …}`)"
    if not taken:
        return Fault(request.name, place, what, fix)
    owner = ledger.owner[host.name, taken[0].id]
    what += f", {len(taken)} of them assigned to {owner.title} ({{line}})"
    return Fault(request.name, place, what, fix, ("hosts",), owner.name)
