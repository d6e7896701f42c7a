"""Locks of files (flock): the kernel frees them at a process's end, and containers share them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created; wait while another process holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if another process prevents that.

    Any number of processes have a `shared` lock at the same time.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
