"""The GPU use of a run of a queue's job: from its record, or from the events in its log. Pure.

GPUs count from the time at which the job got their host until the job's last line there. The
queue's controller counts in the same way for `kit usage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kit.report.record import Run
from kit.runtime.lines import is_event
from kit.runtime.status import LogLine
from trainer.contract import event_lines
from trainer.contract.allocation import Allocation
from trainer.contract.queue_events import Allocated

Place = tuple[str, Allocation]
"""A host, and the GPUs that the job had there."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The owner of a run and its GPU use; `waited_seconds` is the job's time in the queue."""

    owner: str
    priority: int
    waited_seconds: float
    gpu_hours: float


def usage_of(run: Run) -> Usage | None:
    """Return the usage of a run from its record; None if its job was not the queue's."""
    last = dict[Place, float]()
    for attempt in run.attempts:
        for rank in attempt.ranks:
            if rank.allocation:
                last[rank.host, rank.allocation] = attempt.last
    return _usage(last)


def usage_in(lines: Iterable[LogLine]) -> Usage | None:
    """Return the usage of a run from the lines of its hosts, which are in the order of time."""
    last, present = dict[Place, float](), dict[str, Place]()
    for line in lines:
        event = event_lines.parse(line.text) if is_event(line.text) else None
        if isinstance(event, Allocated):
            own = Allocation(event.owner, event.priority, event.gpus, event.since, event.waited)
            present[line.host] = line.host, own
        time = event.time if event else line.time
        if line.host in present and time is not None:
            last[present[line.host]] = time
    return _usage(last)


def _usage(last: Mapping[Place, float]) -> Usage | None:
    """Return the usage of GPUs, each until its last line."""
    if not last:
        return None
    newest = max((own for _, own in last), key=lambda own: own.since)
    seconds = sum(own.gpus * max(0.0, end - own.since) for (_, own), end in last.items())
    return Usage(newest.owner, newest.priority, newest.waited, seconds / 3600)
