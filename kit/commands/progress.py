"""The progress of several transfers: bars on a terminal, a line now and then otherwise."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

from kit.commands.tables import console
from kit.values import show_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

EVERY = 5.0
"""Seconds between two lines about the same transfer."""


class Transfers:
    """Shows transfers on standard error; threads may report at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, float] = {}

    def __enter__(self) -> Transfers:
        screen = console(stderr=True)
        if screen.is_terminal:
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TransferSpeedColumn,
            )

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            self._bars = Progress(*columns, TransferSpeedColumn(), console=screen)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, state: str, done: int, total: int | None) -> None:
        """Show that `done` bytes of a transfer have arrived, of `total` if it is known."""
        with self._lock:
            if self._bars is None:
                self._print(name, state, done, total)
                return
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=None)
            text = f"{name}: {state}"
            task = self._tasks[name]
            self._bars.update(task, description=text, completed=done, total=total or None)

    def _print(self, name: str, state: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._printed.setdefault(name, now) < EVERY:
            return
        self._printed[name] = now
        size = f" {show_bytes(done)}" if done else ""
        share = f" of {show_bytes(total)}" if total and done else ""
        click.echo(f"{name}: {state}{size}{share}", err=True)
