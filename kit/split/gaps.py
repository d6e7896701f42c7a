"""The servers that answer nowhere for a while during a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.plan.types import Placement
from kit.plan.work import Plan, ServerPlan

Gpus = Mapping[str, frozenset[str]]
"""The ids of GPUs by host."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A server that is down while a split is carried out.

    `seconds` are the most that trainings may take to save and to release its GPUs; then the server
    starts on `hosts`. `moves`: these are other hosts than before.
    """

    server: str
    hosts: tuple[str, ...]
    seconds: int
    moves: bool

    def __str__(self) -> str:
        where = ", ".join(self.hosts)
        first = f"at most {self.seconds} s until its GPUs are free, then " if self.seconds else ""
        why = "it has no `proxy:`" if self.moves else "no other host serves it"
        return (
            f"{self.server} is down during this split: {first}its start on {where}, with its "
            f"image and its weights; no order of steps avoids this, because {why}"
        )


def gaps(before: Plan, after: Plan) -> tuple[Gap, ...]:
    """Return the servers that no host answers for at some moment of a split.

    An unchanged host continues. Several changed hosts restart one after the other. New
    hosts answer before former ones end only if a proxy finds the hosts that answer.
    """
    old = {server.name: server for server in before.servers}
    all_gaps = (_gap(before, old[new.name], new) for new in after.servers if new.name in old)
    return tuple(gap for gap in all_gaps if gap is not None)


def _gap(before: Plan, old: ServerPlan, new: ServerPlan) -> Gap | None:
    had, has = _gpus(old.placements), _gpus(new.placements)
    if not had or not has:
        return None
    both = had.keys() & has.keys()
    goes_on = any(had[host] == has[host] for host in both) or len(both) > 1
    moves = not has.keys() <= had.keys()
    if goes_on or (moves and new.server.proxy is not None):
        return None
    return Gap(new.name, tuple(has), _release(before, has), moves)


def _release(before: Plan, wanted: Gpus) -> int:
    """Return the seconds that trainings on these GPUs have to save and to end, at most."""
    graces = (
        job.job.stop_grace
        for job in before.jobs
        for host, gpus in _gpus(job.containers).items()
        if gpus & wanted.get(host, frozenset())
    )
    return max(graces, default=0)


def _gpus(placements: Sequence[Placement]) -> Gpus:
    return {each.host.name: frozenset(gpu.id for gpu in each.gpus) for each in placements}
