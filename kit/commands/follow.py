"""Shows running jobs: their output, on a terminal with a bar below it, and how they ended."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kit.engine import Engine, JobStatus, LogLine, State

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

REFRESH = 0.5
"""Seconds between two looks at the metrics."""


def follow(engine: Engine, jobs: Sequence[str]) -> None:
    """Print the jobs' output until all have ended."""
    with _screen(engine, jobs) as write:
        for line in engine.logs(jobs, follow=True):
            write(prefixed(line, several=len(jobs) > 1))


def prefixed(line: LogLine, *, several: bool) -> str:
    """Put the host in front of a line, and the job where there are several."""
    origin = f"{line.job}/{line.host}" if several else line.host
    return f"{origin} | {line.text}"


@contextmanager
def _screen(engine: Engine, jobs: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Yield what writes a line: above the bars on a terminal, plainly elsewhere."""
    if not sys.stdout.isatty():
        yield click.echo
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    over = threading.Event()
    with Progress(*columns, transient=True) as bar:
        thread = threading.Thread(target=_refresh, args=(engine, jobs, bar, over))
        thread.start()
        try:
            yield functools.partial(
                bar.console.print, markup=False, highlight=False, soft_wrap=True
            )
        finally:
            over.set()
            thread.join()


def _refresh(engine: Engine, jobs: Sequence[str], bar: Bar, over: threading.Event) -> None:
    tasks = {job: bar.add_task(job, total=None, now="starting") for job in jobs}
    while not over.wait(REFRESH):
        for status in engine.status():
            progress = status.progress
            if status.job in tasks and progress is not None:
                now = f"epoch {progress.epoch}/{progress.epochs}  {score(status)}"
                bar.update(
                    tasks[status.job], total=progress.steps, completed=progress.step, now=now
                )


def score(status: JobStatus) -> str:
    """Say how good the model is by the newest metrics."""
    progress = status.progress
    if progress is None or progress.accuracy is None:
        return ""
    return f"test accuracy {progress.accuracy:.2%}"


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
