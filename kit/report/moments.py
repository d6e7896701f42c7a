"""The time line of a job from the events in its log: what is known of a script. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kit.runtime.events import ended_by
from kit.runtime.lines import is_event
from kit.runtime.status import LogLine
from kit.values import count
from trainer.contract import event_lines, events, limit_events, queue_events


@dataclass(frozen=True, slots=True)
class Moment:
    """Something at a time, in seconds since 1970, on a host."""

    time: float
    host: str
    words: str


def moments(lines: Iterable[LogLine]) -> tuple[Moment, ...]:
    """Return the moments of a job in the order of time; repeated events count once."""
    timeline = []
    worlds: dict[str, tuple[int, int]] = {}  # Of each host: size of the world, restarts.
    restarts: dict[str, int] = {}
    for line in lines:
        event = event_lines.parse(line.text) if is_event(line.text) else None
        if isinstance(event, events.Started):
            worlds.pop(line.host, None)
            restarts.pop(line.host, None)
        if isinstance(event, events.Restart):
            # Each rank with a reason prints one; the first rank of the host always does.
            if restarts.get(line.host) == event.restarts and not event.reason:
                continue
            restarts[line.host] = event.restarts
        if isinstance(event, events.Member):
            world = event.world_size, event.restarts
            if worlds.get(line.host) == world:
                continue
            worlds[line.host] = world
        if event is not None:
            timeline += [Moment(event.time, line.host, words) for words in _words(event)]
    return tuple(sorted(timeline, key=lambda moment: moment.time))


def _words(event: events.Event) -> Iterator[str]:
    if isinstance(event, events.Started):
        gpus = f", sees {count(len(event.gpus), 'GPU')}" if event.gpus else ""
        yield f"the container starts{gpus}"
    elif isinstance(event, events.Member):
        yield f"its ranks have joined, {count(event.world_size, 'rank')} on all hosts"
    elif isinstance(event, events.Restart):
        reason = f": {event.reason}" if event.reason else ""
        yield f"its ranks are restarted, {count(event.restarts, 'restart')} so far{reason}"
    elif isinstance(event, events.Regrouped):
        why = f": {event.reason}" if event.reason else ""
        ranks, hosts = count(event.world_size, "rank"), ", ".join(event.hosts)
        yield f"{ranks} on {hosts} continue at step {event.step} after {event.seconds:.1f} s{why}"
    elif isinstance(event, events.Ended):
        yield f"the container ends with exit status {event.exit_code}"
    elif isinstance(event, events.Failed):
        yield f"failed: {event.message}"
    elif isinstance(event, queue_events.Allocated):
        yield f"the queue has given {count(event.gpus, 'GPU')} of it to {event.owner}'s job"
    elif isinstance(event, limit_events.Limit):
        yield ended_by(event)
