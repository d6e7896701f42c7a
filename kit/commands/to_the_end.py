"""Following jobs to their end: signals stop them on this machine, and not on other hosts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from types import FrameType

import click

from kit.commands.follow import failed, failures, follow, outcome
from kit.errors import SIGNALLED, KitError
from kit.runtime.status import ENDED, JobStatus
from kit.runtime.target import Target


def follow_to_end(target: Target, names: Sequence[str]) -> int:
    """Follow jobs to their end, and report it; return the exit status of the command."""
    number = None
    if target.tied_to_terminal:
        number = _follow_here(target, names)
    else:
        _follow_elsewhere(target, names)
    ended = [status for status in target.status() if status.job in names]
    for status in ended:
        report(status)
    return SIGNALLED + number if number else int(failed(ended))


def _follow_elsewhere(target: Target, names: Sequence[str]) -> None:
    """Follow jobs on other hosts, which continue if this process is interrupted."""
    try:
        follow(target, names)
    except KeyboardInterrupt:
        go_on = "continues" if len(names) == 1 else "continue"
        click.echo(f"{', '.join(names)} {go_on} without this terminal", err=True)
        click.echo("see `kit status` and `kit logs -f`; end with `kit stop`", err=True)
        raise


def _follow_here(target: Target, names: Sequence[str]) -> int | None:
    """Follow jobs of this machine; Ctrl-C and SIGTERM stop them. Return the signal's number.

    Their last output is still shown.
    """
    stopping = threading.Thread(target=_stop_all, args=(target, names))
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if stopping.ident is None:
            click.echo("stopping, after a last checkpoint …", err=True)
            stopping.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        follow(target, names)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if stopping.ident is not None:
            stopping.join()
    return came[0] if came else None


def _stop_all(target: Target, names: Sequence[str]) -> None:
    running = [s.job for s in target.status() if s.job in names and s.state not in ENDED]
    for name in running:
        # The job may have just ended by itself.
        with contextlib.suppress(KitError):
            target.stop(name)


def report(status: JobStatus) -> None:
    """Print how a job ended, its checkpoint, and the next command."""
    click.echo(outcome(status))
    for text in failures(status):
        click.echo(text)
    if status.checkpoint is not None:
        click.echo(f"checkpoint: {status.checkpoint}")
