"""When a session ends: its time, kept in its home, which outlives the container."""

import json
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainer.launcher.errors import FAILURE, LaunchError

NOTES = ".kit"
# The folder for kit's own files in the home of a session.


class Deadline(NamedTuple):
    """When a session ends, in seconds since 1970 (0: never), and whether it has."""

    id: str  # Of the session, in the variables of all that runs in it.
    until: float
    over: bool = False


def notes_of(home: Path) -> Path:
    """Make the folder of kit's own files, which only the session's user can read."""
    folder = home / NOTES
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        raise LaunchError(f"{what}; the session's user must own its home", FAILURE) from error
    return folder


def read_deadline(notes: Path) -> Deadline | None:
    """Read the end of the session; None without a readable file."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((notes / "session.json").read_text())
        return Deadline(str(found["id"]), float(found["until"]), bool(found["over"]))
    return None


def write_deadline(notes: Path, deadline: Deadline) -> None:
    """Write it; a reader finds the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=notes)
    with os.fdopen(handle, "w") as file:
        json.dump(deadline._asdict(), file)
    Path(name).replace(notes / "session.json")


def begin(notes: Path, seconds: int | None, now: float) -> Deadline:
    """Return the end of a session that begins, `seconds` from now at most.

    A container that starts again, as after a reboot, keeps the end of the one before, also one that
    has passed meanwhile.
    """
    before = read_deadline(notes)
    if before is not None and not before.over and (before.until or not seconds):
        return before
    deadline = Deadline(secrets.token_hex(8), now + seconds if seconds else 0.0)
    write_deadline(notes, deadline)
    return deadline


def extended(deadline: Deadline, seconds: float, now: float) -> Deadline:
    """Return a deadline that is `seconds` later."""
    return deadline._replace(until=max(deadline.until, now) + seconds)
