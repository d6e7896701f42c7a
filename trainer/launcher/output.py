"""Output: lines for people, events for programs."""

import os
import socket
import sys
import time
from pathlib import Path

from trainer.contract.mark import marked


def say(text: str, *, error: bool = False, program: str = "launch") -> None:
    """Write one line for people."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{program} {os.environ.get('KIT_HOST') or socket.gethostname()}: {text}\n")
    stream.flush()


def event(name: str, **values: object) -> str:
    """The line of an event."""
    return marked(name, {"time": round(time.time(), 3), **values})


def emit(name: str, **values: object) -> None:
    """Print an event, unless standard output is a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.write(event(name, **values) + "\n")
        sys.stdout.flush()


def replace_file(file: Path, text: str) -> None:
    """Write a file that others may read at any time; raises OSError, and then changes nothing."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        draft.write_text(text)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
