"""The output of past deployments: the lines of their containers that the hosts keep."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

from kit.errors import InputError
from kit.runtime.history import Deployment, begins, newest
from kit.runtime.kept import ContainerLog, Kept, Span, kept_logs
from kit.runtime.lines import is_event
from kit.runtime.rendered import rendered
from kit.runtime.status import LogLine, NoLinesError
from kit.runtime.target import Target
from kit.values import count
from kit.workload.monitoring import COLLECTOR, FOLDER
from trainer.contract import event_lines, events
from trainer.contract.words import nearest

Runs = Mapping[tuple[str, int], Sequence[LogLine]]
"""The lines of deployments, by job and number."""


class Past:
    """The deployments of a cluster, and their lines.

    `notes` are messages about the lines that were missing in the last read.
    """

    def __init__(self, target: Target, cluster: str, tree: Path) -> None:
        self._target, self._cluster, self._tree = target, cluster, tree
        self.notes: tuple[str, ...] = ()

    @cached_property
    def history(self) -> tuple[Deployment, ...]:
        """The deployments, the newest first."""
        return self._target.history()

    @property
    def is_kept(self) -> bool:
        """Whether the hosts keep lines, according to the rendered files."""
        return self._target.on_hosts and (self._tree / FOLDER / COLLECTOR).is_file()

    def lines(self, names: Sequence[str], begin: float | None, run: int | None) -> list[LogLine]:
        """Return the kept lines of workloads (default: all): of one `run`, or from `begin` on.

        Without either, the lines begin with the newest deployment of each.

        Raises:
            KitError: A name or a number is not in the history, or no host gives lines.
        """
        self._check("--since" if run is None else "--run")
        known = list(dict.fromkeys(each.job for each in self.history))
        for name in names:
            if name not in known:
                raise InputError(f"{name} is not in the history", nearest(name, known))
        names = names or known
        last = [begins(each) for each in newest(self.history).values() if each.job in names]
        span = Span(min(last, default=0.0) if begin is None else begin, math.inf)
        if run is not None:
            span = span_of(self.history, names, run)
        kept = self._read(names, span, events=False)
        if run is not None:
            self.notes += tuple(self._gone(names[0], run))
        return kept.lines(span)

    def events_of(self, names: Sequence[str]) -> Runs:
        """Return the kept events of all deployments of jobs.

        Of kinds that repeat, only the last events before one of the other kinds are returned.

        Raises:
            KitError: No host gives lines.
        """
        self._check("the number of the run")
        times = [begins(each) for each in self.history if each.job in names]
        kept = self._read(names, Span(min(times, default=0.0), math.inf), events=True)
        return by_run(kept.logs, self.history)

    def last(self, name: str) -> int:
        """Return the number of a workload's newest deployment; 0 if there is none."""
        return sum(each.job == name for each in self.history)

    def newest_lines(self, name: str) -> Sequence[LogLine]:
        """Return the lines of the newest deployment from its containers, or else its kept events.

        There are none if its containers were removed and no lines are kept.
        """
        try:
            return list(self._target.logs([name], follow=False))
        except (InputError, NoLinesError):
            if not self.is_kept:
                return ()
        return self.events_of([name]).get((name, self.last(name)), ())

    def _check(self, option: str) -> None:
        if not self._target.on_hosts:
            what = "kit keeps no lines of earlier runs with engine local and kubernetes"
            raise InputError(what, f"leave out {option}: `kit logs JOB` prints the last run")

    def _read(self, names: Sequence[str], span: Span, *, events: bool) -> Kept:
        hosts = rendered(self._tree).hosts
        kept = kept_logs(hosts, self._cluster, names, span.day, events=events)
        self.notes = tuple(kept.missing(span))
        return kept

    def _gone(self, name: str, run: int) -> Iterator[str]:
        """Yield a message for each host of a deployment that is no longer in the inventory."""
        hosts = {host.name for host in rendered(self._tree).hosts}
        own = [each for each in reversed(self.history) if each.job == name]
        for host in own[run - 1].hosts:
            if host not in hosts:
                yield f"lines of a host are missing: {host} is not in the inventory any more"


def number_of(history: Sequence[Deployment], name: str, word: str) -> int:
    """Return the number of a workload's deployment.

    Raises:
        InputError: There is no such deployment.
    """
    last = sum(each.job == name for each in history)
    if word.isdecimal() and 0 < int(word) <= last:
        return int(word)
    what = f"{name} has {count(last, 'deployment')} in the history, not {word}"
    raise InputError(what, "see their numbers with `kit history`")


def span_of(history: Sequence[Deployment], names: Sequence[str], run: int) -> Span:
    """Return the span in which the containers of a job's deployment have begun.

    Raises:
        InputError: There are several names, or there is no such deployment.
    """
    if len(names) != 1:
        raise InputError("--run is that of one job", "write `kit logs JOB --run N`")
    times = sorted(begins(each) for each in history if each.job == names[0])
    run = number_of(history, names[0], str(run))
    end = times[run] if run < len(times) else math.inf
    return Span(times[run - 1], end, of_begin=True)


def by_run(logs: Iterable[ContainerLog], history: Sequence[Deployment]) -> Runs:
    """Divide the lines of containers by deployment; those of each deployment are sorted by time.

    The lines from one start of a container to the next belong to the last deployment before the
    first of them: Compose uses the name of a container again.
    """
    times = defaultdict[str, list[float]](list)
    for each in reversed(history):
        times[each.job].append(begins(each))
    runs = defaultdict[tuple[str, int], list[LogLine]](list)
    for lines in chain.from_iterable(_starts(log.lines) for log in logs):
        job = lines[0].job
        runs[job, bisect_right(times[job], lines[0].time or 0.0)] += lines
    return {run: sorted(lines, key=lambda line: line.time or 0.0) for run, lines in runs.items()}


def _starts(lines: Iterable[LogLine]) -> list[list[LogLine]]:
    """Divide the lines of a container by its starts, each of which begins with an event."""
    starts = list[list[LogLine]]()
    for line in lines:
        event = event_lines.parse(line.text) if is_event(line.text) else None
        if not starts or isinstance(event, events.Started):
            starts.append([])
        starts[-1].append(line)
    return starts
