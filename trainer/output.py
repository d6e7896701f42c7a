"""The output of all processes: lines for people, events for programs. Standard library only."""

from __future__ import annotations

import sys
from typing import TextIO

from trainer.contract import event_lines, events


def say(text: str, to: TextIO | None = None) -> None:
    """Write one line, by default to standard output."""
    stream = to or sys.stdout
    stream.write(text + "\n")
    stream.flush()


def say_error(text: str) -> None:
    """Write one line to standard error."""
    say(text, sys.stderr)


def emit(event: events.Event) -> None:
    """Print an event, unless standard output is a terminal."""
    if not sys.stdout.isatty():
        say(event_lines.line(event))
