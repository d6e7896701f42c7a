"""Copies of checkpoints, for a job that moves to hosts without its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.model import Host
from kit.plan.storage import CHECKPOINTS
from kit.runtime.history import Deployment
from kit.runtime.steps import Step
from kit.runtime.volumes import copy_volume, has_volume
from kit.workload.types import Workload


@dataclass(frozen=True, slots=True)
class Move(Step):
    """Copy a job's checkpoints from a host that has left it to one that joins it."""

    job: str
    volume: str
    source: Host
    target: Host
    image: str

    @property
    def batch(self) -> object:
        """The copies of one job run concurrently."""
        return type(self), self.job

    def execute(self) -> None:
        """Copy the volume; the former host keeps its own.

        Raises:
            KitError: A host cannot be reached, or its disk has no space.
        """
        with closing(Docker.of(self.source)) as source, closing(Docker.of(self.target)) as target:
            copy_volume(source, target, self.volume, self.image, CHECKPOINTS)


def moves(
    work: Workload, history: Iterable[Deployment], hosts: Mapping[str, Host]
) -> Iterator[Move]:
    """Yield the copies for a job if none of its hosts took part in its last deployment.

    If one host did, the others get its checkpoints when they train together. `hosts` are those of
    the inventory, `history` is the newest first.

    Raises:
        KitError: The checkpoints are on hosts that the inventory no longer has.
    """
    last = next((each.hosts for each in history if each.job == work.name), ())
    new = [each.host for each in work.placements]
    if not last or work.store is None or not work.store.volume:
        return
    if any(host.name in last for host in new):
        return
    known = [hosts[name] for name in last if name in hosts]
    if not known:
        raise _lost(work, f"{', '.join(last)}, which the inventory no longer has")
    for source, target in zip(known, new, strict=False):
        what = f"copy the checkpoints of {work.name} from {source.name}"
        cause = "none of the hosts that have trained it takes part now"
        yield Move(
            target.name, what, cause, work.name, work.store.volume, source, target, work.image
        )


def _lost(work: Workload, where: str) -> KitError:
    return KitError(
        f"{work.name}: its checkpoints are on {where}",
        f"restore that; or `kit deploy --fresh {work.name}` starts without them",
    )


def with_moves(
    steps: Sequence[Step],
    workloads: Sequence[Workload],
    history: Sequence[Deployment],
    hosts: Iterable[Host],
    begins: Callable[[Step], str],
) -> tuple[Step, ...]:
    """Insert the copies of each job before the first step that starts it; return all steps.

    `begins` returns the stack that a step starts, or "".

    Raises:
        KitError: A job's checkpoints cannot be reached.
    """
    by_name = {host.name: host for host in hosts}
    starting = {begins(step) for step in steps}
    left = {
        each.stack: _reachable(each, moves(each, history, by_name))
        for each in workloads
        if each.stack in starting
    }
    done: list[Step] = []
    for step in steps:
        done += [*left.pop(begins(step), ()), step]
    return tuple(done)


def _reachable(work: Workload, wanted: Iterable[Move]) -> list[Move]:
    """Return the copies whose source has the volume."""
    kept = []
    for each in wanted:
        try:
            with closing(Docker.of(each.source)) as docker:
                if has_volume(docker, each.volume):
                    kept.append(each)
        except KitError as error:
            raise _lost(work, f"{each.source.name}, which cannot be reached ({error})") from None
    return kept
