"""The decision on the steps of a deploy with Compose: a pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kit.errors import KitError, once
from kit.model import Gpu
from kit.plan.types import Placement
from kit.runtime.steps import Step
from kit.targets.compose.containers import Container
from kit.targets.compose.lower import opened
from kit.values import meant_gpus
from kit.workload.types import Kind, Role, Workload


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host.

    `gpus` are the UUIDs from `nvidia-smi -L`. `hook`: Docker finds NVIDIA's hook. `ports` are the
    ports in use. `containers` are those of all jobs. `images` and `volumes` are the requested names
    that exist. `data` are the containers of the data services.
    """

    gpus: tuple[str, ...]
    hook: bool
    ports: frozenset[int]
    containers: tuple[Container, ...]
    images: frozenset[str]
    volumes: frozenset[str]
    data: tuple[Container, ...] = ()


@dataclass(frozen=True, slots=True)
class HostStep(Step):
    """A step for a workload on a host; it runs on all hosts concurrently."""

    name: str
    host: str

    @property
    def batch(self) -> object:
        """The hosts of a workload end and start together."""
        return type(self), self.name


@dataclass(frozen=True, slots=True)
class Pull(HostStep):
    """Pull an image."""

    image: str

    @property
    def batch(self) -> object:
        """All images are pulled before anything changes."""
        return type(self)


@dataclass(frozen=True, slots=True)
class End(HostStep):
    """End the containers that train or answer; training ones save a last checkpoint."""


@dataclass(frozen=True, slots=True)
class Remove(HostStep):
    """Remove the containers."""


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints(HostStep):
    """Delete the volume of checkpoints."""

    volume: str


@dataclass(frozen=True, slots=True)
class Start(HostStep):
    """Start the project."""


def decide(
    cluster: str,
    workloads: Sequence[Workload],
    versions: Mapping[tuple[str, str], Mapping[str, str]],
    observed: Mapping[str, HostState],
    by_hand: Mapping[tuple[str, str], str] | None = None,
    *,
    fresh: bool,
    rendered: Collection[str] = (),
) -> tuple[Step, ...]:
    """Return the steps for each host; none for workloads that run as their files say.

    All containers end before any starts: a GPU is released before it is reassigned.
    `versions` are the hashes in the rendered files, by workload and host, then by service;
    `rendered` are all workloads that have files. `by_hand` are the changes by hand since the
    deploy, by workload and host.

    Raises:
        KitError: The deploy is not possible; the message lists all reasons.
    """
    every = [one for host in observed.values() for one in host.containers]
    foreign = [one for one in every if one.cluster != cluster]
    for each in workloads:
        _refuse_foreign(each, foreign)
    observed = {
        name: replace(host, containers=tuple(c for c in host.containers if c.cluster == cluster))
        for name, host in observed.items()
    }
    problems = [
        f"{placement.host.name}: {problem}"
        for each in workloads
        for ports in (opened(each),)
        for placement in each.placements
        for problem in _problems(
            each, workloads, placement, ports, observed[placement.host.name], foreign, rendered
        )
    ]
    fresh_jobs = {each.name for each in workloads if fresh and each.kind is Kind.JOB}
    for each in workloads:
        if each.name in fresh_jobs:
            problems += [*_keeps(each), *_runs(each, observed)]
    if problems:
        raise KitError(once(problems), "nothing was changed on any host")
    decisions = [
        _Decision(each, versions, observed, by_hand or {}, _restart_cause(each, fresh_jobs))
        for each in workloads
    ]
    return (
        *(step for each in decisions for step in each.pulls()),
        *(step for each in decisions for step in each.ends()),
        *(step for each in decisions for step in each.starts(fresh=each.work.name in fresh_jobs)),
    )


def _restart_cause(work: Workload, fresh_jobs: set[str]) -> str:
    """Return the reason for a restart that is independent of the file, or ""."""
    if work.name in fresh_jobs:
        return "it starts from the beginning"
    if work.reads in fresh_jobs:
        return f"it reads the checkpoints of {work.reads}, which are deleted"
    return ""


def _refuse_foreign(work: Workload, foreign: Iterable[Container]) -> None:
    """Reject a name that another engine uses; other clusters have other project names."""
    for one in foreign:
        if one.job == work.name and not one.cluster and (one.service or one.runs):
            what = f"{one.host}: another engine already runs {work.stack}"
            raise KitError(what, "end that one, or give yours another name")


def _runs(job: Workload, observed: Mapping[str, HostState]) -> Iterator[str]:
    hosts = {
        one.host for host in observed.values() for one in host.containers if _training(one, job)
    }
    if hosts:
        where = ", ".join(sorted(hosts))
        yield f"job {job.name} runs on {where}: end it first, kit stop {job.name}"


def _training(one: Container, work: Workload) -> bool:
    return one.job == work.name and one.trains and one.runs and not one.hopeless


def _problems(
    work: Workload,
    workloads: Sequence[Workload],
    placement: Placement,
    ports: Mapping[str, Sequence[tuple[int, str]]],
    observed: HostState,
    foreign: Iterable[Container],
    rendered: Collection[str],
) -> Iterator[str]:
    """Yield the reasons why a workload cannot run on a host, each with its remedy."""
    yield from _missing(placement, observed)
    if not observed.hook:
        yield (
            "Docker finds no nvidia-container-runtime-hook, which gives a container its GPUs; "
            "install nvidia-container-toolkit and restart Docker"
        )
    ours = {each.name for each in workloads}  # The deploy assigns their GPUs again.
    others = [one for one in observed.containers if one.job not in ours]
    others += [one for one in foreign if one.host == placement.host.name]
    yield from _held(placement, others, observed, rendered)
    # Containers of this deploy may use the ports; they end before the new ones start.
    if any(one.job in ours and one.runs for one in observed.containers):
        return
    for port, key in ports.get(placement.host.name, ()):
        if port in observed.ports:
            yield (
                f"port {port} is in use (`ss -tlnp` on the host shows by which process); "
                f"end that, or write `{key}` in {work.file}"
            )


def _missing(placement: Placement, observed: HostState) -> Iterator[str]:
    present = {uuid.lower() for uuid in observed.gpus}
    for gpu in placement.gpus:
        if _uuid(gpu, observed.gpus) not in present:
            if gpu.known and (meant := meant_gpus(gpu.id, observed.gpus)):
                fault = f"{gpu.title} is the beginning of {' and '.join(meant)}"
                yield f"{fault}: run `kit discover {placement.host.name}`, then `kit render`"
                continue
            listed = ", ".join(observed.gpus) or "none"
            yield (
                f"{gpu.title} does not exist; `nvidia-smi -L` lists {listed}: "
                f"correct the inventory, then run `kit render`"
            )


def _held(
    placement: Placement,
    others: Iterable[Container],
    observed: HostState,
    rendered: Collection[str],
) -> Iterator[str]:
    own = {_uuid(gpu, observed.gpus): gpu.title for gpu in placement.gpus}
    # The monitoring sees all GPUs and holds none.
    for one in (one for one in others if one.runs and (one.job or not one.cluster)):
        held = {_named(device, observed.gpus) for device in one.devices}
        shared = [name for uuid, name in own.items() if uuid in held or "all" in held]
        if shared:
            holder = one.job if one.kind is Kind.SERVER else f"job {one.job}"
            too = "deploy it too, or " if one.job in rendered else ""
            fix = f"{too}end it with `kit stop {one.job}`"
            if one not in observed.containers:
                owner = f"cluster {one.cluster}" if one.cluster else "another engine"
                holder, fix = f"{holder} of {owner}", "end it there"
            verb = "is" if len(shared) == 1 else "are"
            yield f"{', '.join(shared)} {verb} held by {holder}; {fix}"


def _uuid(gpu: Gpu, listed: Sequence[str]) -> str:
    """Return the UUID of a planned GPU, or "" if the host does not have it."""
    if gpu.known:
        return gpu.id.lower()
    index = int(gpu.id)
    return listed[index].lower() if index < len(listed) else ""


def _named(device: str, listed: Sequence[str]) -> str:
    """Return the UUID of a container's GPU, which may be given by index."""
    by_index = {str(index): uuid for index, uuid in enumerate(listed)}
    return by_index.get(device, device).lower()


def _keeps(job: Workload) -> Iterator[str]:
    """Yield the reason why kit must not delete a job's checkpoints: the volume is the user's."""
    if job.store is not None and not job.store.volume:
        yield f"job {job.name} keeps its checkpoints in {job.store.place}; move them away by hand"


class _Decision:
    """The steps for one workload, with their reasons."""

    def __init__(
        self,
        work: Workload,
        versions: Mapping[tuple[str, str], Mapping[str, str]],
        observed: Mapping[str, HostState],
        by_hand: Mapping[tuple[str, str], str],
        restart_cause: str,
    ) -> None:
        self.work = work
        self._hosts = set(work.hosts)
        self._observed = observed
        self._there = {
            name: [one for one in host.containers if one.job == work.name]
            for name, host in observed.items()
        }
        # If no container of it trains or answers, the run has ended and all parts start together.
        ended = not any(_training(one, work) for own in self._there.values() for one in own)
        causes = {
            name: _cause(
                self._there[name],
                versions[work.name, name],
                by_hand.get((work.name, name), ""),
                restart_cause=restart_cause,
                ended=ended,
            )
            for name in work.hosts
        }
        self._changed = {name: cause for name, cause in causes.items() if cause}
        renewed = {
            name: _renewal(self._there[name], versions[work.name, name])
            for name in work.hosts
            if name not in self._changed
        }
        self._renewed = {name: cause for name, cause in renewed.items() if cause}

    def pulls(self) -> Iterator[Step]:
        """Yield the steps that pull images."""
        image, name = self.work.image, self.work.name
        for host in self._changed:
            present = image in self._observed[host].images
            cause = "it may have changed" if present else "it is not there"
            yield Pull(host, f"pull {image}", cause, name, host, image)

    def ends(self) -> Iterator[Step]:
        """Yield the steps that end containers, also on hosts that left the workload."""
        name = self.work.name
        removed = {
            host: "it no longer takes part" for host in self._there if host not in self._hosts
        }
        causes = self._changed | removed
        for host, cause in causes.items():
            if any(_training(one, self.work) for one in self._there[host]):
                yield End(host, f"end {name}", cause, name, host)
        for host, cause in causes.items():
            if self._there[host]:
                yield Remove(host, f"remove the containers of {name}", cause, name, host)

    def starts(self, *, fresh: bool) -> Iterator[Step]:
        """Yield the steps that start containers; with `fresh` checkpoints are deleted before."""
        name, store = self.work.name, self.work.store
        gpus = {each.host.name: each.gpus for each in self.work.placements}
        if fresh and store is not None:
            for host in gpus:
                if store.volume in self._observed[host].volumes:
                    what = f"delete volume {store.volume}"
                    yield DeleteCheckpoints(
                        host, what, "it starts from the beginning", name, host, store.volume
                    )
        for host, cause in self._changed.items():
            given = ", ".join(gpu.title for gpu in gpus.get(host, ()))
            what = f"start {name}{f' on {given}' if given else ', to offer checkpoints'}"
            yield Start(host, what, cause, name, host)
        for host, cause in self._renewed.items():
            what = f"renew the coordinator of {name}; its hosts train on"
            yield Start(host, what, cause, name, host)


def _differs(one: Container, versions: Mapping[str, str]) -> bool:
    return bool(one.version) and versions.get(one.service, one.version) != one.version


def _renewal(containers: Sequence[Container], versions: Mapping[str, str]) -> str:
    """Return the reason to start a job's coordinator alone, or "" if it runs from the same file."""
    own = [one for one in containers if one.service == Role.RENDEZVOUS]
    if Role.RENDEZVOUS in versions and not any(one.runs for one in own):
        return "it does not run"
    return "its file has changed" if any(_differs(one, versions) for one in own) else ""


def _cause(
    containers: Sequence[Container],
    versions: Mapping[str, str],
    by_hand: str,
    *,
    restart_cause: str,
    ended: bool,
) -> str:
    """Return the reason to start a host's part, or "" if it runs as its file says."""
    if not containers:
        return "it does not run"
    if ended:
        return "its run has ended"
    if restart_cause:
        return restart_cause
    if any(_differs(one, versions) for one in containers if one.service != Role.RENDEZVOUS):
        return "its file has changed"
    services = {one.service for one in containers}
    # A template of the user's own may add containers; they have no hash.
    if extra := {one.service for one in containers if one.version} - versions.keys():
        return f"its file has no {', '.join(sorted(extra))} now"
    if lost := versions.keys() - services - {Role.RENDEZVOUS}:
        return f"its container {', '.join(sorted(lost))} is not there"
    if by_hand:
        return by_hand
    if any(one.status == "running" and not one.healthy for one in containers):
        return "it is not healthy"
    whole = all(one.runs for one in containers if one.service != Role.RENDEZVOUS)
    return "" if whole else "its part has ended"
