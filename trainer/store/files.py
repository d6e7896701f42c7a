"""Atomic writes of files, and digests of files.

A file is written as `.NAME.new` in the same folder and renamed. An interrupted process leaves
this draft: nothing reads it, and the next writer of the file replaces it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

BLOCK = 2**20
Content = bytes | memoryview


def draft_of(path: Path) -> Path:
    """Return the path of a file while it is written."""
    return path.with_name(f".{path.name}.new")


def replace_file(path: Path, content: Content, *, durable: bool = True) -> None:
    """Replace a file atomically; `durable`: after a power cut it is the old one or the new one.

    Raises:
        OSError: The disk refuses it; the old file is unchanged, and the draft is removed.
    """
    draft = draft_of(path)
    try:
        if durable:
            write_file(draft, content)
        else:
            draft.write_bytes(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def write_file(path: Path, content: Content) -> None:
    """Write a file to the disk, not only to the page cache."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def publish_folder(draft: Path, path: Path) -> None:
    """Rename a folder, whose files are on the disk, to a free name."""
    sync(draft)
    draft.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write a file's cached content, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_disk(folder: Path) -> None:
    """Write the file system of a folder to its disk: one call for any number of files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


def digest(
    path: Path, count: Callable[[int], object] = lambda _: None, *, follow: bool = True
) -> str:
    """Return the SHA-256 of a file; `count` gets the bytes of each block.

    Raises:
        OSError: It cannot be read, or is a symbolic link without `follow`.
    """
    hashed, buffer = hashlib.sha256(), bytearray(BLOCK)
    handle = os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb", buffering=0) as stream:
        while size := stream.readinto(buffer):
            hashed.update(memoryview(buffer)[:size])
            count(size)
    return hashed.hexdigest()
