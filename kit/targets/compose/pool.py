"""The pool of the queue, made from the containers of all hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kit.queue.carrier import Seen
from kit.queue.document import Rules
from kit.queue.record import Record
from kit.queue.see import BY_HAND, CLAIM_LASTS, HostView, JobView, Place, see
from kit.queue.words import wish_of
from kit.runtime.status import State
from kit.targets.compose.containers import LEAVING, ON, Container
from kit.workload.types import Role

RECLAIMED, AVOIDED, SILENT, CLAIMED = "reclaimed", "avoided", "silent", "claimed"
"""The marks of a host: the person who reclaimed it, when somebody there has ended a job by hand,
why the controller cannot reach it, and the GPUs that a deploy waits for, with the deploy's time."""


def pool_of(
    cluster: str,
    observed: Mapping[str, Sequence[Container]],
    rules: Rules,
    records: Iterable[Record],
    marks: Mapping[str, Mapping[str, Any]],
    used: Mapping[str, float],
    now: float,
) -> Seen:
    """Return the pool of a cluster at a time.

    `observed` are the containers of the hosts that answer, `marks` those of all hosts. `records`
    are those of jobs that have not ended.
    """
    every = [one for own in observed.values() for one in own]
    views = list(_jobs([one for one in every if one.cluster == cluster], records))
    jobs = {(cluster, each.record.job) for each in views}
    hosts = {
        name: HostView(
            there=name in observed and not mark.get(SILENT),
            silent=mark.get(SILENT, ""),
            taken=_taken(observed.get(name, ()), jobs) | _claimed(mark.get(CLAIMED), now),
            reclaimed=mark.get(RECLAIMED, ""),
            avoided=mark.get(AVOIDED, 0.0),
        )
        for name, mark in marks.items()
    }
    return see(rules, views, hosts, used, now)


def _jobs(every: Sequence[Container], records: Iterable[Record]) -> Iterator[JobView]:
    """Yield the jobs that have containers."""
    for record in records:
        own = [one for one in every if one.job == record.job]
        waiting = {one.host: one for one in own if one.waits}
        if waiting:
            labels = next(iter(waiting.values())).labels
            places = {
                host: _place([one for one in own if one.host == host and one.since is not None])
                for host in waiting
            }
            on = any(one.runs for one in own if one.service == Role.RENDEZVOUS)
            yield JobView(record, wish_of(labels, frozenset(waiting)), places, on)


def _place(own: Sequence[Container]) -> Place:
    """Return a host of a job from the containers that the queue has made there."""
    on = next((one for one in own if one.name.endswith(ON) and one.status != "created"), None)
    leaving = next((one for one in own if one.name.endswith(LEAVING) and one.runs), None)
    shown = on or leaving
    if shown is None:
        return Place(on=False, living=False)
    ended = on is not None and not on.runs
    by_hand = ended and shown.exit_status in BY_HAND
    return Place(
        on=on is not None,
        living=any(one.runs for one in own),
        gpus=shown.devices,
        since=shown.since or 0.0,
        completed=ended and shown.state() is State.COMPLETED,
        failed=ended and not by_hand and shown.state() is not State.COMPLETED,
        by_hand=by_hand,
    )


def _taken(own: Iterable[Container], jobs: Collection[tuple[str, str]]) -> frozenset[str]:
    """Return the GPUs of a host that other jobs or servers hold; `jobs` are (cluster, name)."""
    holders = (one for one in own if one.runs and one.job and (one.cluster, one.job) not in jobs)
    return frozenset(gpu for one in holders for gpu in one.devices)


def _claimed(claim: Mapping[str, Any] | None, now: float) -> frozenset[str]:
    """Return the GPUs of a host that a deploy has claimed, and waits for."""
    if not claim or now - claim["since"] >= CLAIM_LASTS:
        return frozenset()
    return frozenset(claim["gpus"])
