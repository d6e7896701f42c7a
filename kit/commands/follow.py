"""Following of jobs: their output, a progress bar on a terminal, and their outcome."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from kit.runtime.events import Reader
from kit.runtime.lines import is_event
from kit.runtime.status import JobStatus, LogLine, Progress, State
from kit.runtime.target import Target
from kit.values import count

Update = Callable[[str, Progress], None]
"""A function of a job and its progress."""


def follow(target: Target, jobs: Sequence[str]) -> None:
    """Print the jobs' output until all have ended. Events update the progress bars."""
    readers = {job: Reader() for job in jobs}
    with _screen(jobs) as (write, update):
        for line in target.logs(jobs, follow=True):
            if not is_event(line.text):
                write(prefixed(line, several=len(jobs) > 1))
                continue
            reader = readers[line.job]
            reader.read(line)
            if reader.progress is not None:
                update(line.job, reader.progress)


def prefixed(line: LogLine, *, several: bool) -> str:
    """Prefix a line with host and rank, and with the job if there are several."""
    origin = f"{line.job}/{line.host}" if several else line.host
    rank = "" if line.rank is None else f" {line.rank}"
    return f"{origin}{rank} | {line.text}"


@contextmanager
def _screen(jobs: Sequence[str]) -> Iterator[tuple[Callable[[str], None], Update]]:
    """Yield two functions: one prints a line above the bars, one updates the bars."""
    if not sys.stdout.isatty():
        yield click.echo, lambda _job, _progress: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, transient=True) as bars:
        tasks = {job: bars.add_task(job, total=None, now="starting") for job in jobs}

        def update(job: str, progress: Progress) -> None:
            now = f"epoch {progress.epoch}/{progress.epochs}  {_score(progress)}"
            bars.update(tasks[job], total=progress.steps, completed=progress.step, now=now)

        write = functools.partial(bars.console.print, markup=False, highlight=False, soft_wrap=True)
        yield write, update


def _score(progress: Progress | None) -> str:
    if progress is None:
        return ""
    known = [f"{name} {value:.6g}" for name, value in progress.metrics.items()]
    if progress.accuracy is not None:
        known.insert(0, f"accuracy {progress.accuracy:.2%}")
    return f"test {', '.join(known)}" if known else ""


def score(status: JobStatus) -> str:
    """Return the newest test accuracy and the metrics of a custom model, as text."""
    return _score(status.progress)


def outcome(status: JobStatus) -> str:
    """Return the outcome or the state of a job as text."""
    line = f"{status.job} {status.state}"
    if status.ended is not None:
        line += f" after {status.ended - status.started:.0f} s"
    details = ", ".join(part for part in (score(status), status.message) if part)
    return f"{line}: {details}" if details else line


def failures(status: JobStatus) -> Iterator[str]:
    """Yield messages on the restarts and the last failure of a workload, and its warning."""
    if status.warning:
        yield f"warning: {status.warning}"
    if status.restarts:
        yield f"its workers were restarted {count(status.restarts, 'time')}"
    if status.failure and status.state is not State.COMPLETED:
        yield f"failed on {status.failure}"


def failed(statuses: Sequence[JobStatus]) -> bool:
    """Return whether one of the jobs did not complete."""
    return any(status.state is not State.COMPLETED for status in statuses)
