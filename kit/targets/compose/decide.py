"""The decision on the steps of a deploy with Compose: a pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kit.model import Gpu
from kit.runtime.steps import Step
from kit.targets.compose.containers import Container, HostState
from kit.targets.compose.refusals import queued, refuse
from kit.workload.types import Kind, Role, Workload


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
class Claim(HostStep):
    """Record which GPUs a workload claims, and wait until jobs of the queue have left them."""

    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unclaim(HostStep):
    """Remove that claim: the workload has its GPUs."""


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
    observed = {
        name: replace(host, containers=tuple(c for c in host.containers if c.cluster == cluster))
        for name, host in observed.items()
    }
    fresh_jobs = {each.name for each in workloads if fresh and each.kind is Kind.JOB}
    refuse(workloads, observed, foreign, rendered, fresh_jobs)
    decisions = [
        _Decision(each, versions, observed, by_hand or {}, _restart_cause(each, fresh_jobs))
        for each in workloads
    ]
    return (
        *(step for each in decisions for step in each.pulls()),
        *(step for each in decisions for step in each.ends()),
        *(step for each in decisions for step in each.claims()),
        *(step for each in decisions for step in each.starts(fresh=each.work.name in fresh_jobs)),
        *(step for each in decisions for step in each.unclaims()),
    )


def _restart_cause(work: Workload, fresh_jobs: set[str]) -> str:
    """Return the reason for a restart that is independent of the file, or ""."""
    if work.name in fresh_jobs:
        return "it starts from the beginning"
    if work.reads in fresh_jobs:
        return f"it reads the checkpoints of {work.reads}, which are deleted"
    return ""


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
        ended = not any(one.works_for(work.name) for own in self._there.values() for one in own)
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
            if name not in self._changed and not work.queue
        }
        self._renewed = {name: cause for name, cause in renewed.items() if cause}

    def pulls(self) -> Iterator[Step]:
        """Yield the steps that pull images."""
        image, name = self.work.image, self.work.name
        for host in self._changed:
            present = image in self._observed[host].images
            cause = "it may have changed" if present else "the host lacks it"
            yield Pull(host, f"pull {image}", cause, name, host, image)

    def ends(self) -> Iterator[Step]:
        """Yield the steps that end containers, also on hosts that left the workload."""
        name = self.work.name
        removed = {host: "it is no longer used" for host in self._there if host not in self._hosts}
        causes = self._changed | removed
        for host, cause in causes.items():
            if any(one.works_for(self.work.name) for one in self._there[host]):
                yield End(host, f"end {name}", cause, name, host)
        for host, cause in causes.items():
            if self._there[host]:
                yield Remove(host, f"remove the containers of {name}", cause, name, host)

    def claims(self) -> Iterator[Step]:
        """Yield the steps that claim GPUs which jobs of the queue have."""
        for host, gpus in self._queued().items():
            what = f"claim {', '.join(gpu.title for gpu in gpus)}"
            cause, ids = "a job of the queue has it, and leaves it", tuple(gpu.id for gpu in gpus)
            yield Claim(host, what, cause, self.work.name, host, ids)

    def unclaims(self) -> Iterator[Step]:
        """Yield the steps that remove these claims."""
        for host in self._queued():
            yield Unclaim(host, "remove the claim", "done", self.work.name, host)

    def _queued(self) -> dict[str, tuple[Gpu, ...]]:
        """Return the GPUs of this workload that jobs of the queue hold, by host."""
        begins = () if self.work.queue else self.work.placements
        places = [each for each in begins if each.host.name in self._changed]
        held = {each.host.name: queued(each, self._observed[each.host.name]) for each in places}
        return {host: gpus for host, gpus in held.items() if gpus}

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
            if self.work.queue:
                yield Start(host, f"create {name}, for the queue", cause, name, host)
                continue
            given = ", ".join(gpu.title for gpu in gpus.get(host, ()))
            what = f"start {name}{f' on {given}' if given else ', to offer checkpoints'}"
            yield Start(host, what, cause, name, host)
        for host, cause in self._renewed.items():
            what = f"restart the coordinator of {name}; its hosts continue to train"
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
    waits = [one for one in containers if one.waits]
    containers = [one for one in containers if not one.idle]
    if waits and all(one.service == Role.RENDEZVOUS for one in containers):
        changed = any(_differs(one, versions) for one in (*waits, *containers))
        return "its file has changed" if changed else ""
    if ended:
        return "its run has ended"
    if restart_cause:
        return restart_cause
    if any(_differs(one, versions) for one in containers if one.service != Role.RENDEZVOUS):
        return "its file has changed"
    services = {one.service for one in containers}
    # A custom template may add containers; they have no hash.
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
