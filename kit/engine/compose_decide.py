"""What is to be done to start jobs by Compose, from what the hosts look like: a pure function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kit.engine import Step
from kit.engine.containers import Container
from kit.errors import KitError
from kit.plan.storage import CHECKPOINTS
from kit.plan.types import JobPlan, Placement


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
    """What an action does, in the order in which it is done."""

    PULL = auto()
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
    cluster: str, jobs: Sequence[JobPlan], seen: Mapping[str, Seen], *, fresh: bool
) -> tuple[Action, ...]:
    """Return what is to be done on which host.

    Raises:
        KitError: Something is in the way; all that is, at once.
    """
    for job in jobs:
        _refuse_running(cluster, job, seen)
    problems = [
        f"{placement.host.name}: {problem}"
        for job in jobs
        for placement in job.placements
        for problem in _problems(job, placement, seen[placement.host.name])
    ]
    if fresh:
        problems += [problem for job in jobs for problem in _keeps(job)]
    if problems:
        raise KitError("\n".join(problems), "nothing was changed on any host")
    return tuple(action for job in jobs for action in _actions(job, seen, fresh=fresh))


def _refuse_running(cluster: str, job: JobPlan, seen: Mapping[str, Seen]) -> None:
    same = [one for host in seen.values() for one in host.containers if one.job == job.name]
    for one in same:
        if one.cluster != cluster and (one.service or one.runs):
            whose = f"cluster {one.cluster}" if one.cluster else "another engine"
            what = f"{one.host}: there is a {job.stack} of {whose} already"
            raise KitError(what, "end that one, or give the job another name")
    running = sorted({one.host for one in same if one.trains and one.runs})
    if running:
        raise KitError(
            f"job {job.name} is running already, on {', '.join(running)}",
            f"see it with `kit status`, end it with `kit stop {job.name}`",
        )


def _problems(job: JobPlan, placement: Placement, seen: Seen) -> Iterator[str]:
    """Say what would keep the job from running on a host, and what to do about it."""
    yield from _missing(placement, seen)
    if not seen.hook:
        yield (
            "Docker finds no nvidia-container-runtime-hook, which gives a container its GPUs; "
            "install nvidia-container-toolkit and restart Docker"
        )
    yield from _held(job, placement, seen)
    wanted = {}
    if job.host_network and job.rendezvous.host == placement.host.name:
        wanted["rendezvous"] = job.rendezvous.port
    if job.job.metrics_port is not None:
        wanted["metrics"] = job.job.metrics_port
    own = any(one.job == job.name and one.runs for one in seen.containers)
    for section, port in wanted.items():
        # Of an earlier run the rendezvous may be left: it goes before this one comes.
        if port in seen.ports and not own:
            yield (
                f"port {port} is in use (`ss -tlnp` on the host tells by what); "
                f"end that, or write `{section}: {{port: …}}` in {job.job.file}"
            )


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


def _held(job: JobPlan, placement: Placement, seen: Seen) -> Iterator[str]:
    own = {_uuid(device, seen.gpus): _name(device) for device in placement.devices}
    for one in seen.containers:
        if not one.runs or one.job == job.name:
            continue
        held = {_uuid(device, seen.gpus) for device in one.devices}
        shared = [name for uuid, name in own.items() if uuid in held or "all" in held]
        if shared:
            yield (
                f"{', '.join(shared)} {'is' if len(shared) == 1 else 'are'} held by job {one.job}; "
                f"wait for it, or end it with `kit stop {one.job}`"
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


def own_volume(job: JobPlan) -> str:
    """Return the volume of a job's checkpoints that kit made, and may delete."""
    return f"kit-{job.name}-checkpoints"


def _actions(job: JobPlan, seen: Mapping[str, Seen], *, fresh: bool) -> Iterator[Action]:
    def action(kind: Kind, host: str, what: str, cause: str) -> Action:
        return Action(kind, job.name, host, Step(host, what, cause))

    image, volume = job.image, own_volume(job)
    hosts = {placement.host.name: placement for placement in job.placements}
    for name in hosts:
        cause = "it may have changed" if image in seen[name].images else "it is not there"
        yield action(Kind.PULL, name, f"pull {image}", cause)
    # Also from hosts that have a part in it no more.
    before = [name for name in seen if any(one.job == job.name for one in seen[name].containers)]
    for name in before:
        yield action(Kind.REMOVE, name, f"remove the containers of {job.name}", "its run has ended")
    for name in hosts:
        if fresh and volume in seen[name].volumes:
            yield action(Kind.FORGET, name, f"delete volume {volume}", "it is to begin anew")
    for name, placement in hosts.items():
        cause = "its run has ended" if name in before else "it does not run"
        gpus = ", ".join(map(_name, placement.devices))
        yield action(Kind.START, name, f"start {job.name} on {gpus}", cause)
