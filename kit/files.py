"""Plain files on disk: bounded reads, atomic replacement, one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import KitError
from kit.values import show_size

LARGEST = 16 * 2**20
"""The size limit of the user's files in bytes; 20,000 hosts with eight listed GPUs each fit."""
PATIENCE = 30
"""Seconds to wait for another process that writes to the same folder."""
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.kit-[0-9a-f]{8}|\.(?P<older>.+)\.new")


def read_plain(path: Path, *, follow: bool = True, largest: int | None = None) -> bytes:
    """Read a plain file. Reject pipes, which would block, and devices, which may be endless.

    Raises:
        OSError: It cannot be read, is not a plain file, or has more than `largest` bytes.
    """
    nofollow = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | nofollow)
    with os.fdopen(descriptor, "rb") as file:
        attributes = os.fstat(descriptor)
        if stat.S_ISDIR(attributes.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(attributes.st_mode):
            raise OSError(errno.EINVAL, "this is a pipe or a device, not a plain file", str(path))
        content = file.read(-1 if largest is None else largest + 1)
        if largest is not None and len(content) > largest:
            what = f"it has more than {show_size(largest)}"
            raise OSError(errno.EFBIG, what, str(path))
        return content


def temporary_of(name: str) -> str | None:
    """Return the name of the file that a temporary file replaces; None for other files."""
    match = _TEMPORARY.fullmatch(name)
    return (match["name"] or match["older"]) if match else None


def replace(path: Path, text: str, *, keep_mode: bool = False, mode: int | None = None) -> None:
    """Replace a file atomically: write it under another name and rename it.

    `keep_mode` keeps the permissions of the replaced file. `mode` sets them at creation.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.kit-{secrets.token_hex(4)}")
    try:
        if mode is not None:
            temporary.touch(mode)
        temporary.write_bytes(text.encode())
        if keep_mode:
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # ENOSPC does not name the file.
        raise


def replace_alone(path: Path, text: str, *, keep_mode: bool = False) -> None:
    """Replace a file in a folder of other files, and remove temporary files of killed writers.

    Raises:
        KitError: Another process writes there and does not end.
        OSError: The file cannot be written.
    """
    with locked(path.parent):
        for each in list(path.parent.iterdir()):
            if each.name != path.name and temporary_of(each.name) == path.name:
                each.unlink(missing_ok=True)
        replace(path, text, keep_mode=keep_mode)


def replace_unchanged(path: Path, before: str, after: str) -> None:
    """Replace a file that has not changed since it was read; if it is a link, replace its target.

    If `before` is "", the file must not exist.

    Raises:
        KitError: The file has changed since it was read, or cannot be written.
    """
    try:
        now = read_plain(path) if path.exists() else b""
        if now != before.encode():
            raise KitError(f"{path} was changed in the meantime", "run it again")
        replace_alone(path.resolve(), after, keep_mode=path.exists())
    except OSError as error:
        raise KitError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Allow one process at a time to write to a folder. The lock ends with the process.

    Raises:
        KitError: Another process holds the lock and does not end.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                what = f"{folder}: another kit has been writing here for {PATIENCE} s"
                raise KitError(what, "wait for it, or end it (see `ps`)") from None
            time.sleep(0.05)
        except OSError:
            return  # NFS cannot lock folders.
        else:
            return
