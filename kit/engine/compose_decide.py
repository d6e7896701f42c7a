"""What brings jobs and servers up by Compose, from what the hosts look like: a pure function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kit.engine import Step
from kit.engine.containers import Container
from kit.errors import KitError
from kit.plan.storage import CHECKPOINTS
from kit.plan.types import Placement
from kit.plan.work import JobPlan, ServerPlan, Work


@dataclass(frozen=True, slots=True)
class Seen:
    """What a host looks like.

    `gpus` are the UUIDs that `nvidia-smi -L` lists, `hook` says whether Docker finds NVIDIA's hook,
    `ports` are those that are listened on, `containers` those of all jobs, `images` and `volumes`
    the names among those asked for that are there.
    """

    gpus: tuple[str, ...]
    hook: bool
    ports: frozenset[int]
    containers: tuple[Container, ...]
    images: frozenset[str]
    volumes: frozenset[str]


class Kind(Enum):
    """What an action does, in the order in which it is done.

    All that ends has ended before anything is started: a GPU is free before somebody else gets it.
    """

    PULL = auto()
    END = auto()
    REMOVE = auto()
    FORGET = auto()
    START = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do for a job on a host, and how it is told."""

    kind: Kind
    job: str
    host: str
    step: Step


def decide(
    cluster: str,
    work: Sequence[Work],
    versions: Mapping[tuple[str, str], str],
    seen: Mapping[str, Seen],
    *,
    fresh: bool,
) -> tuple[Action, ...]:
    """Return what is to be done on which host; nothing for what runs from the same file already.

    `versions` are the hashes of the rendered files, by names of work and host.

    Raises:
        KitError: Something is in the way; all that is, at once.
    """
    for each in work:
        _refuse_strangers(cluster, each, seen)
    problems = [
        f"{placement.host.name}: {problem}"
        for each in work
        for placement in each.placements
        for problem in _problems(each, work, placement, seen[placement.host.name])
    ]
    if fresh:
        jobs = [each for each in work if isinstance(each, JobPlan)]
        problems += [problem for job in jobs for problem in _keeps(job)]
        problems += [problem for job in jobs for problem in _runs(job, seen)]
    if problems:
        raise KitError("\n".join(problems), "nothing was changed on any host")
    begun_anew = {each.name for each in work if fresh and isinstance(each, JobPlan)}
    return tuple(
        action
        for each in work
        for action in _actions(each, versions, seen, anew=_anew(each, begun_anew), fresh=fresh)
    )


def _anew(work: Work, begun_anew: set[str]) -> str:
    """Say why something is started again whatever it was started from; "" where nothing asks so."""
    if isinstance(work, JobPlan):
        return "it is to begin anew" if work.name in begun_anew else ""
    job = work.server.job
    return f"it reads the checkpoints of {job}, which are to go" if job in begun_anew else ""


def _refuse_strangers(cluster: str, work: Work, seen: Mapping[str, Seen]) -> None:
    for one in (one for host in seen.values() for one in host.containers if one.job == work.name):
        if one.cluster != cluster and (one.service or one.runs):
            whose = f"cluster {one.cluster}" if one.cluster else "another engine"
            what = f"{one.host}: there is a {work.stack} of {whose} already"
            raise KitError(what, "end that one, or give yours another name")


def _runs(job: JobPlan, seen: Mapping[str, Seen]) -> Iterator[str]:
    hosts = {one.host for host in seen.values() for one in host.containers if _training(one, job)}
    if hosts:
        where = ", ".join(sorted(hosts))
        yield f"job {job.name} runs on {where}: end it before it begins anew, kit stop {job.name}"


def _training(one: Container, work: Work) -> bool:
    return one.job == work.name and one.trains and one.runs


def _problems(
    work: Work, all_work: Sequence[Work], placement: Placement, seen: Seen
) -> Iterator[str]:
    """Say what would keep something from running on a host, and what to do about it."""
    yield from _missing(placement, seen)
    if not seen.hook:
        yield (
            "Docker finds no nvidia-container-runtime-hook, which gives a container its GPUs; "
            "install nvidia-container-toolkit and restart Docker"
        )
    yield from _held(all_work, placement, seen)
    # Of an earlier run something may be left, or of what is brought up to date: that goes before.
    ours = {each.name for each in all_work}
    if any(one.job in ours and one.runs for one in seen.containers):
        return
    for key, port in _ports(work, placement.host.name).items():
        if port in seen.ports:
            yield (
                f"port {port} is in use (`ss -tlnp` on the host tells by what); "
                f"end that, or write `{key}` in {work.file}"
            )


def _ports(work: Work, host: str) -> dict[str, int]:
    """Return the ports that are opened on a host, by what sets them in the file."""
    if isinstance(work, ServerPlan):
        ports = {"port: …": work.server.port}
        offered = {"transfer_port: …": work.server.transfer_port} if work.offers(host) else {}
        return ports | offered
    wanted = {}
    if work.host_network and work.rendezvous.host == host:
        wanted["rendezvous: {port: …}"] = work.rendezvous.port
    if work.job.metrics_port is not None:
        wanted["metrics: {port: …}"] = work.job.metrics_port
    return wanted


def _missing(placement: Placement, seen: Seen) -> Iterator[str]:
    there = {uuid.lower() for uuid in seen.gpus}
    for device in placement.devices:
        known = int(device) < len(seen.gpus) if device.isdigit() else device.lower() in there
        if not known:
            listed = ", ".join(seen.gpus) or "none"
            yield (
                f"{_name(device)} is not there; `nvidia-smi -L` lists {listed}: "
                f"correct the inventory, then run `kit render`"
            )


def _held(all_work: Sequence[Work], placement: Placement, seen: Seen) -> Iterator[str]:
    own = {_uuid(device, seen.gpus): _name(device) for device in placement.devices}
    ours = {each.name for each in all_work}  # Who gets it by the plan, and nobody else.
    for one in seen.containers:
        if not one.runs or one.job in ours:
            continue
        held = {_uuid(device, seen.gpus) for device in one.devices}
        shared = [name for uuid, name in own.items() if uuid in held or "all" in held]
        if shared:
            holder = one.job if one.service == "serve" else f"job {one.job}"
            yield (
                f"{', '.join(shared)} {'is' if len(shared) == 1 else 'are'} held by {holder}; "
                f"deploy it too, or end it with `kit stop {one.job}`"
            )


def _name(device: str) -> str:
    return f"GPU {device}" if device.isdigit() else device


def _uuid(device: str, gpus: Sequence[str]) -> str:
    """Return the name by which a GPU is compared: its UUID, where a container has its index."""
    if device.isdigit() and int(device) < len(gpus):
        return gpus[int(device)].lower()
    return device.lower()


def _keeps(job: JobPlan) -> Iterator[str]:
    """Say what keeps kit from forgetting a job's checkpoints: they are not in a volume of its."""
    volumes = {volume.key: volume for volume in job.volumes}
    for mount in job.mounts:
        if mount.target != CHECKPOINTS or mount.source == own_volume(job):
            continue
        volume = volumes.get(mount.source)
        where = f"{mount.source}, a folder of yours"
        if volume is not None:
            where = f"{mount.source}, a volume of yours"
            if volume.nfs_address:
                where = f"{volume.nfs_address}:{volume.nfs_path}, a folder of yours"
        yield f"job {job.name} keeps its checkpoints in {where}; move them away by hand"


def own_volume(job: Work) -> str:
    """Return the volume of a job's checkpoints that kit made, and may delete."""
    return f"kit-{job.name}-checkpoints"


def _actions(
    work: Work,
    versions: Mapping[tuple[str, str], str],
    seen: Mapping[str, Seen],
    *,
    anew: str,
    fresh: bool,
) -> Iterator[Action]:
    def action(kind: Kind, host: str, what: str, cause: str) -> Action:
        return Action(kind, work.name, host, Step(host, what, cause))

    there = {
        name: [one for one in host.containers if one.job == work.name]
        for name, host in seen.items()
    }
    ended = not any(_training(one, work) for own in there.values() for one in own)
    # Where nothing of it trains or answers any more, its run is over and all parts begin together.
    causes = {
        name: _cause(there[name], versions[work.name, name], anew=anew, ended=ended)
        for name in work.parts
    }
    changed = {name: cause for name, cause in causes.items() if cause}
    for name in changed:
        cause = "it may have changed" if work.image in seen[name].images else "it is not there"
        yield action(Kind.PULL, name, f"pull {work.image}", cause)
    # Also from hosts that have a part in it no more.
    gone = {name: "it has no part in it any more" for name in there if name not in work.parts}
    for name, cause in (changed | gone).items():
        if any(_training(one, work) for one in there[name]):
            yield action(Kind.END, name, f"end {work.name}", cause)
        if there[name]:
            yield action(Kind.REMOVE, name, f"remove the containers of {work.name}", cause)
    devices = {placement.host.name: placement.devices for placement in work.placements}
    if fresh and isinstance(work, JobPlan):
        volume = own_volume(work)
        for name in devices:
            if volume in seen[name].volumes:
                yield action(Kind.FORGET, name, f"delete volume {volume}", "it is to begin anew")
    for name, cause in changed.items():
        gpus = ", ".join(map(_name, devices.get(name, ())))
        what = f"start {work.name}{f' on {gpus}' if gpus else ', to offer checkpoints'}"
        yield action(Kind.START, name, what, cause)


def _cause(there: Sequence[Container], version: str, *, anew: str, ended: bool) -> str:
    """Say why a host's part is to be started; "" where it runs from the same file."""
    if not there:
        return "it does not run"
    if ended:
        return "its run has ended"
    if anew:
        return anew
    if any(one.version != version for one in there if one.version):
        return "its file has changed"
    whole = all(one.runs for one in there if one.service != "rendezvous")
    return "" if whole else "its part has ended"
