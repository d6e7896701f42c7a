"""Shows running jobs: their output, on a terminal with a bar below it, and how they ended."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from kit.runtime.events import Reader, is_event
from kit.runtime.status import JobStatus, LogLine, Progress, State
from kit.runtime.target import Target

Update = Callable[[str, Progress], None]
"""Takes a job and how far it is."""


def follow(target: Target, jobs: Sequence[str]) -> None:
    """Print the jobs' output until all have ended; what is for programs moves the bars."""
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
    """Put host and rank in front of a line, and the job where there are several."""
    origin = f"{line.job}/{line.host}" if several else line.host
    rank = "" if line.rank is None else f" {line.rank}"
    return f"{origin}{rank} | {line.text}"


@contextmanager
def _screen(jobs: Sequence[str]) -> Iterator[tuple[Callable[[str], None], Update]]:
    """Yield what writes a line, above the bars on a terminal, and what moves the bars."""
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
            now = f"epoch {progress.epoch}/{progress.epochs}  {_accuracy(progress)}"
            bars.update(tasks[job], total=progress.steps, completed=progress.step, now=now)

        write = functools.partial(bars.console.print, markup=False, highlight=False, soft_wrap=True)
        yield write, update


def _accuracy(progress: Progress | None) -> str:
    if progress is None or progress.accuracy is None:
        return ""
    return f"test accuracy {progress.accuracy:.2%}"


def score(status: JobStatus) -> str:
    """Say how good the model is by the newest metrics."""
    return _accuracy(status.progress)


def outcome(status: JobStatus) -> str:
    """Say how a job ended, or how it is doing."""
    line = f"{status.job} {status.state}"
    if status.ended is not None:
        line += f" after {status.ended - status.started:.0f} s"
    details = ", ".join(part for part in (score(status), status.message) if part)
    return f"{line}: {details}" if details else line


def failed(statuses: Sequence[JobStatus]) -> bool:
    """Whether one of the jobs has not completed."""
    return any(status.state is not State.COMPLETED for status in statuses)
