"""Many files at once: threads, progress, and the libraries that some sources need."""

from __future__ import annotations

import errno
import importlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.manifest import check_path, check_tree

BLOCK = 2**20
SILENCE = 60.0  # Seconds without a byte after which a connection has failed.
TRIES = 5  # Successive tries without a byte.
WORKERS = 8
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
EVERY = 1.0  # Seconds between two reports.

Report = Callable[[str, int, int], None]
"""A callback that gets a state, the bytes done, and the total (0: unknown)."""
T = TypeVar("T")


class Progress:
    """The bytes that threads have downloaded, and whether the threads must end."""

    def __init__(self, done: int) -> None:
        self.done, self._lock, self._ends = done, threading.Lock(), False

    def add(self, count: int) -> None:
        """Count bytes; raises InterruptedError after `stop`."""
        with self._lock:
            self.done += count
        if self._ends:
            raise InterruptedError

    def stop(self) -> None:
        """End the threads at their next call of `add`."""
        self._ends = True


def fetch_all(
    work: Iterable[T],
    fetch: Callable[[T], None],
    tick: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    """Call `fetch` with each item in threads, and `tick` from this one every second.

    Raises:
        Exception: The first one from `fetch`; `stop` was called to end the other threads.
    """
    todo, running = iter(work), set[Future[None]]()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            while True:
                for item in islice(todo, 2 * WORKERS - len(running)):
                    running.add(pool.submit(fetch, item))
                if not running:
                    return
                done, running = wait(running, EVERY, FIRST_COMPLETED)
                for future in done:
                    future.result()
                tick()
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def check_names(source: str, names: list[str]) -> None:
    """Raise DataSetError if a file's name cannot be used, or clashes with another."""
    for name in names:
        check_path(name)
    try:
        check_tree(names)
    except DataSetError as error:
        reason = error.message.rpartition(": ")[2]
        raise DataSetError(f"{source}: {reason}", "rename it in the source", MISTAKE) from error


def give(file: Path, target: Path) -> None:
    """Link a downloaded file into the data set; the download is kept until this is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, target)
    except OSError:  # The file system has no hard links.
        file.replace(target)


def is_of_disk(error: OSError) -> bool:
    """Whether an error is from the disk, not from a connection: a retry does not help."""
    return error.filename is not None or error.errno in DISK


def library(module: str, package: str) -> Any:
    """Import a library; raises DataSetError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        fix = f"pip install {package}, or build the trainer's image again"
        raise DataSetError(f"{package} is not installed", fix, MISTAKE) from error
