"""The end of a session, stored in its home, which is kept after the container."""

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import replace_file

NOTES = ".kit"
# The folder for kit's own files in the home of a session.


class Deadline(NamedTuple):
    """The end of a session, in seconds since 1970 (0: never), and whether it has ended."""

    id: str  # Of the session, in the variables of all its processes.
    until: float
    over: bool = False
    started: str = ""  # Differs between starts of the session.


def notes_of(home: Path, session: str) -> Path:
    """Make the folder of kit's own files, which only the session's user can read.

    Sessions may share a home, as on a file server.
    """
    folder = home / NOTES / session
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.chmod(0o700)
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        raise LaunchError(f"{what}; the session's user must own its home", FAILURE) from error
    return folder


def read_deadline(notes: Path) -> Deadline | None:
    """Read the end of the session; None without a readable file."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((notes / "session.json").read_text())
        started = str(found.get("started", ""))
        return Deadline(str(found["id"]), float(found["until"]), bool(found["over"]), started)
    return None


def write_deadline(notes: Path, deadline: Deadline) -> None:
    """Write the end of the session atomically. Raises LaunchError."""
    file = notes / "session.json"
    try:
        notes.mkdir(mode=0o700, parents=True, exist_ok=True)  # Its user may have removed it.
        replace_file(file, json.dumps(deadline._asdict()))
    except OSError as error:
        what = f"{file}: cannot be written: {error.strerror}"
        raise LaunchError(f"{what}; make room in the session's home", FAILURE) from error


def begin(notes: Path, started: str, seconds: int | None, now: float) -> Deadline:
    """Return the end of a session that begins: `seconds` from now, or the stored end.

    A restarted container, as after a reboot, has the same `started`, and keeps the stored end, even
    if that has passed. Raises LaunchError.
    """
    before = read_deadline(notes)
    same = before is not None and before.started == started and not before.over
    if before is not None and same and (before.until or not seconds):
        return before
    until = now + seconds if seconds else 0.0
    deadline = Deadline(secrets.token_hex(8), until, started=started)
    write_deadline(notes, deadline)
    return deadline


def extended(deadline: Deadline, seconds: float, now: float) -> Deadline:
    """Return a deadline that is `seconds` later; a session without an end stays so."""
    if not deadline.until:
        return deadline
    return deadline._replace(until=max(deadline.until, now) + seconds)
