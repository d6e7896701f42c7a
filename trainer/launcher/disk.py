"""The folder of checkpoints: its permissions, and the free space on its disk."""

import os
import shutil
import time
from pathlib import Path

from trainer.launcher.errors import LaunchError
from trainer.launcher.output import emit, say
from trainer.launcher.waiting import REPEAT


def check_checkpoints(folder: Path) -> None:
    """Check that the built-in training can write to its folder."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        wrong = f"{folder} is not a folder that can be written to"
        fix = "mount a volume there, or set KIT_CHECKPOINTS"
        raise LaunchError(f"{wrong}; {fix}", kind="disk")
    if foreign := unchangeable(folder):
        user = os.getuid()
        wrong = f"user {user} cannot change {foreign}, which another user wrote"
        run = "docker run --rm -u root -v VOLUME:/v --entrypoint chown IMAGE"
        fix = f"give the volume away: {run} -R {user} /v"
        raise LaunchError(f"{wrong}; {fix}", kind="disk")


WRITTEN = (
    "step-",
    "damaged-",
    ".writing-",
    ".fetching-",
    "metrics.jsonl",
    "records",
    "tensorboard",
    "tokens",
)
"""Prefixes of the names that a training writes in its folder of checkpoints."""


def unchangeable(folder: Path) -> str:
    """A file of a training that another user wrote and this one cannot change, or "".

    Other files are ignored: a separate disk has lost+found, which belongs to root.
    """
    with os.scandir(folder) as entries:
        ours = (entry for entry in entries if entry.name.startswith(WRITTEN))
        return next((entry.path for entry in ours if not os.access(entry, os.W_OK)), "")


def wait_for_room(folder: Path) -> None:
    """Wait until this host's disk has space for one more checkpoint, as large as the newest.

    Without space, training would fail again at the next checkpoint. The other hosts continue
    without this one, if the job allows that; it joins them when there is space.
    """
    needed = size_of_newest(folder)
    said = 0.0
    while (free := shutil.disk_usage(folder).free) < needed:
        if not said or time.monotonic() - said > REPEAT:
            room = f"{folder} has {show_bytes(free)} free, a checkpoint needs {show_bytes(needed)}"
            emit("failed", kind="disk", message=f"{room}: make room", rank=None, exit_code=None)
            say(f"{room}; waits for free space", error=True)
            said = time.monotonic()
        time.sleep(1)


def size_of_newest(folder: Path) -> int:
    """The bytes of the newest checkpoint and of its ranks' parts here; 0 if there is none."""
    whole = sorted(folder.glob("step-*/COMPLETE"))
    if not whole:
        return 0
    step = whole[-1].parent
    parts = folder / step.name.replace("step-", "ranks-")
    return sum(each.stat().st_size for each in (*step.iterdir(), *parts.glob("*.pt")))


def show_bytes(number: int) -> str:
    """Format a number of bytes for people."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
