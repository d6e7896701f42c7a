"""The reader of events from the containers of a workload.

Each event contains the whole state of its subject, so reading may start anywhere in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from kit.runtime.lines import is_event
from kit.runtime.status import (
    HostStatus,
    LogLine,
    Progress,
    QueueStatus,
    RankPace,
    SessionStatus,
    State,
)
from kit.values import show_age, show_seconds
from trainer.contract import event_lines, events, limit_events, queue_events, session_events


class Reader:
    """Collects the state of one workload from its events; lines are sorted by time."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        """The training's progress; None before it begins, and for the user's own scripts."""
        self.checkpoint: str | None = None
        """The name of the newest checkpoint, or of a server's current one."""
        self.last_step: float | None = None
        """The time of the newest step, in seconds since the epoch by the host's clock."""
        self.world_size: int | None = None
        """The number of processes in the current world; None before the first one."""
        self.failure = ""
        """The last failure of a process; "" if a world has formed and trained since."""
        self.exit_code: int | None = None
        """The exit status of the process that failed last."""
        self.ended: dict[str, int] = {}
        """The exit statuses of hosts' containers that have ended without a failure."""
        self.seen: dict[str, tuple[str, ...]] = {}
        """The UUIDs of the GPUs visible in each host's container."""
        self.fetching: dict[str, str] = {}
        """The data set that each host is fetching, and its progress."""
        self.hung: dict[str, str] = {}
        """The hung workers of hosts, as messages."""
        self.alone: dict[str, str] = {}
        """The hosts that train without the others, with messages."""
        self.silent: dict[str, dict[int, float]] = {}
        """The silent ranks of hosts, and since when, in seconds since the epoch."""
        self.unmoved: dict[str, str] = {}
        """The hosts whose weights do not change, with messages."""
        self.idle: dict[str, str] = {}
        """The hosts that compute nothing, with messages, of a job that ends after `idle`."""
        self.untaught = ""
        """Why the newest training has learned nothing; "" if that was not reported."""
        self.session: SessionStatus | None = None
        """The last report of a session."""
        self.queue: QueueStatus | None = None
        """The job's owner, and its waiting time; None if it is not a job of the queue."""
        self.left_out: dict[str, str] = {}
        """The hosts that are left out until they are released, with the reasons."""
        self.unread: dict[str, str] = {}
        """The hosts whose logs cannot be read now, with the reasons: their state may be old."""
        self._limits: dict[str, limit_events.Limit] = {}
        self._saved_at: int | None = None
        self._restarts: dict[str, int] = {}
        self._holders: dict[int, str] = {}
        self._paces: dict[int, RankPace] = {}

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Each host's ranks in the present world."""
        ranks: dict[str, tuple[int, ...]] = {}
        for rank, host in sorted(self._holders.items()):
            ranks[host] = (*ranks.get(host, ()), rank)
        return ranks

    @property
    def paces(self) -> tuple[RankPace, ...]:
        """The newest pace of each rank of the current world."""
        size = self.world_size or 0
        return tuple(self._paces[rank] for rank in sorted(self._paces) if rank < size)

    @property
    def restarts(self) -> int:
        """The largest number of restarts of a host's workers."""
        return max(self._restarts.values(), default=0)

    @property
    def limit(self) -> str:
        """Why the job has ended by itself, and its last saved step; "" if it has not."""
        saved = "" if self._saved_at is None else f", saved at step {self._saved_at:,}"
        return next((f"{ended_by(each)}{saved}" for each in self._limits.values()), "")

    def of_host(self, host: HostStatus) -> HostStatus:
        """Complete the status of a host with the reports of its processes."""
        if host.host in self._limits and host.state is State.COMPLETED:
            host = replace(host, state=State.STOPPED)
        runs = host.state is State.RUNNING
        reason = self.left_out.get(host.host, "") if runs else ""
        silent = {name: _silence(ranks) for name, ranks in self.silent.items() if ranks}
        known: tuple[dict[str, str], ...] = (self.fetching,)
        if runs:
            known += (self.hung, silent, self.alone, self.unmoved, self.idle, self.unread)
        doing = next((each[host.host] for each in known if host.host in each), "")
        release = f"is left out, `kit release {host.host}` takes it back: {reason}"
        return replace(
            host,
            ranks=() if reason else self.ranks.get(host.host, ()),
            seen=self.seen.get(host.host, ()),
            message=host.message or (release if reason else doing),
            left_out=bool(reason),
        )

    def read(self, line: LogLine) -> None:
        """Process one more line; lines that are not events are ignored."""
        event = event_lines.parse(line.text) if is_event(line.text) else None
        if event is not None:
            _READERS[type(event)](self, event, line)

    def read_logs(self, lines: Iterable[LogLine]) -> None:
        """Process the lines of several logs, in the order of their events."""
        parsed = ((event_lines.parse(line.text), line) for line in lines if is_event(line.text))
        known = [(event, line) for event, line in parsed if event is not None]
        for event, line in sorted(known, key=lambda each: each[0].time):
            _READERS[type(event)](self, event, line)

    def _started(self, event: events.Started, line: LogLine) -> None:
        self.seen[line.host] = event.gpus
        self.ended.pop(line.host, None)
        self.fetching.pop(line.host, None)
        self.left_out.pop(line.host, None)
        self.hung.pop(line.host, None)
        self.alone.pop(line.host, None)
        self.silent.pop(line.host, None)
        self.unmoved.pop(line.host, None)
        self.idle.pop(line.host, None)
        self._limits.pop(line.host, None)
        self._restarts.pop(line.host, None)
        self.session = None

    def _fetch(self, event: events.Fetch, line: LogLine) -> None:
        self.fetching.pop(line.host, None)
        if event.state != "ready":
            share = f": {event.bytes * 100 // event.total} %" if event.total else ""
            left = f", {(event.total - event.bytes) / event.rate:,.0f} s left" if event.rate else ""
            self.fetching[line.host] = f"fetches {event.data_set}@{event.version}{share}{left}"

    def _member(self, event: events.Member, line: LogLine) -> None:
        self.world_size = event.world_size
        # A smaller world has no higher ranks.
        kept = {rank: host for rank, host in self._holders.items() if rank < event.world_size}
        self._holders = kept | {event.rank: line.host}
        self.seen[line.host] = event.gpus
        self.hung.pop(line.host, None)
        self._restarts[line.host] = event.restarts
        self.failure = event.failure

    def _restart(self, event: events.Restart, line: LogLine) -> None:
        self.alone.pop(line.host, None)
        self.silent.pop(line.host, None)
        self._restarts[line.host] = event.restarts
        if event.reason:
            self.failure = f"{line.host}: {event.reason}"

    def _epoch(self, event: events.Epoch, line: LogLine) -> None:
        self.untaught = ""  # The event is repeated after each such epoch.
        self._progress(event, line)

    def _begin(self, event: events.Begin, _line: LogLine) -> None:
        self.progress = Progress(0, event.epochs, 0, event.steps, None, None, None)
        self.failure = self.untaught = ""
        self._saved_at = None

    def _resumed(self, event: events.Resumed, _line: LogLine) -> None:
        self.checkpoint = event.checkpoint
        self._saved_at = None
        self._advance(epoch=event.epoch, step=event.step)

    def _regrouped(self, event: events.Regrouped, _line: LogLine) -> None:
        if self.progress is not None:
            self.progress = replace(self.progress, steps=event.steps)
        self.world_size = event.world_size
        self._saved_at = None
        self._advance(epoch=event.epoch, step=event.step)
        self.failure = ""

    def _progress(self, event: events.Progress, _line: LogLine) -> None:
        before = self.progress
        now = Progress(**{each.name: getattr(event, each.name) for each in fields(Progress)})
        if before and now.accuracy is None:
            now = replace(now, accuracy=before.accuracy)
        if before and not now.metrics:
            now = replace(now, metrics=before.metrics)
        self.progress = now
        self.world_size = event.world_size
        self.checkpoint = event.checkpoint or self.checkpoint
        self.last_step = event.time

    def _pace(self, event: events.Pace, line: LogLine) -> None:
        self._paces[event.rank] = RankPace(
            rank=event.rank,
            host=line.host,
            time=event.time,
            step=event.step,
            seconds=event.step_seconds,
            work=event.data_seconds + event.compute_seconds,
            exchange=event.exchange_seconds,
        )

    def _saved(self, event: events.Saved, _line: LogLine) -> None:
        self.checkpoint = event.checkpoint

    def _kept(self, event: events.Kept, _line: LogLine) -> None:
        self.checkpoint = f"version {event.version}"

    def _stopped(self, event: events.Stopped, _line: LogLine) -> None:
        self.checkpoint = event.checkpoint or self.checkpoint
        self._saved_at = event.step
        self._advance(epoch=event.epoch, step=event.step)

    def _idle(self, event: limit_events.Idle, line: LogLine) -> None:
        self.idle.pop(line.host, None)
        if event.seconds:
            since = show_since(event.time - event.seconds)
            rest = f"the job ends after {show_age(event.limit)} without computing"
            self.idle[line.host] = f"no host has computed since {since}: {rest}"

    def _limit(self, event: limit_events.Limit, line: LogLine) -> None:
        self._limits[line.host] = event

    def _failed(self, event: events.Failed, line: LogLine) -> None:
        self.fetching.pop(line.host, None)
        self.failure = f"{event.host or line.host}: {event.message}"
        self.exit_code = event.exit_code

    def _ended(self, event: events.Ended, line: LogLine) -> None:
        self.ended[line.host] = event.exit_code

    def _hung(self, event: events.Hung, line: LogLine) -> None:
        self.hung[line.host] = f"local rank {event.local_rank} hangs: see `kit logs`"

    def _alone(self, event: events.Alone, line: LogLine) -> None:
        without = f"its processes are in no group after {show_seconds(event.seconds)}"
        cause = "each trains its own model, or is still starting"
        self.alone[line.host] = f"{without}: {cause}; see `kit logs`"

    def _grouped(self, _event: events.Grouped, line: LogLine) -> None:
        self.alone.pop(line.host, None)

    def _silent(self, event: events.Silent, line: LogLine) -> None:
        self.silent.setdefault(line.host, {})[event.rank] = event.time - event.seconds

    def _spoke(self, event: events.Spoke, line: LogLine) -> None:
        self.silent.get(line.host, {}).pop(event.rank, None)

    def _unmoved(self, event: events.Unmoved, line: LogLine) -> None:
        self.unmoved.pop(line.host, None)
        if event.steps:
            why = f"the scale of the loss is {event.scale:.3g}; " if event.scale else ""
            still = f"the weights have not changed for {event.steps} steps"
            self.unmoved[line.host] = f"{still}: {why}losses or gradients are not finite"

    def _allocated(self, event: queue_events.Allocated, _line: LogLine) -> None:
        self.queue = QueueStatus(event.owner, event.priority, event.waited)

    def _session(self, event: session_events.Session, _line: LogLine) -> None:
        known = {each.name: getattr(event, each.name) for each in fields(SessionStatus)}
        self.session, self.failure = SessionStatus(**known), ""

    def _untaught(self, event: events.Untaught, _line: LogLine) -> None:
        self.untaught = event.message

    def _left_out(self, event: events.LeftOut, line: LogLine) -> None:
        self.left_out[line.host] = event.message
        self._holders = {rank: host for rank, host in self._holders.items() if host != line.host}

    def _released(self, _event: events.Released, line: LogLine) -> None:
        self.left_out.pop(line.host, None)

    def _serving(self, event: events.Serving, _line: LogLine) -> None:
        self.checkpoint = event.checkpoint

    def _advance(self, *, epoch: int, step: int) -> None:
        if self.progress is not None:
            self.progress = replace(self.progress, epoch=epoch, step=step)


def ended_by(limit: limit_events.Limit) -> str:
    """Return why a job has ended by itself."""
    seconds = show_age(limit.seconds)
    if limit.key == "idle":
        return f"ended: it computed nothing for {seconds}, its GPUs are free"
    return f"ended after its max_duration of {seconds}"


def _silence(ranks: Mapping[int, float]) -> str:
    """Return the message about silent ranks of a host, and since when they are silent."""
    names = ", ".join(map(str, sorted(ranks)))
    who = f"rank {names} is" if len(ranks) == 1 else f"ranks {names} are"
    return f"{who} silent since {show_since(min(ranks.values()))}: `kit logs` has the stacks"


def show_since(seconds: float) -> str:
    """Format a time in seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


_READERS: dict[type[events.Event], Callable[[Reader, Any, LogLine], None]] = {
    events.Started: Reader._started,
    events.Fetch: Reader._fetch,
    events.Member: Reader._member,
    events.Restart: Reader._restart,
    events.Begin: Reader._begin,
    events.Resumed: Reader._resumed,
    events.Regrouped: Reader._regrouped,
    events.Progress: Reader._progress,
    events.Epoch: Reader._epoch,
    events.Pace: Reader._pace,
    events.Saved: Reader._saved,
    events.Kept: Reader._kept,
    events.Stopped: Reader._stopped,
    events.Failed: Reader._failed,
    events.Ended: Reader._ended,
    events.Hung: Reader._hung,
    events.Alone: Reader._alone,
    events.Grouped: Reader._grouped,
    events.Silent: Reader._silent,
    events.Spoke: Reader._spoke,
    limit_events.Idle: Reader._idle,
    limit_events.Limit: Reader._limit,
    events.Unmoved: Reader._unmoved,
    events.Untaught: Reader._untaught,
    queue_events.Allocated: Reader._allocated,
    session_events.Session: Reader._session,
    events.LeftOut: Reader._left_out,
    events.Released: Reader._released,
    events.Serving: Reader._serving,
}
