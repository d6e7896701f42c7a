"""File locks (flock): the kernel frees them when a process ends, and containers share them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create a file and hold its lock; wait while another process holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if another process has the lock.

    Any number of processes can have a `shared` lock at the same time.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
