"""The archive of a job's code: the same bytes, and so the same digest, for the same files.

It is a plain tar file, stored as a data set of one file, so that modes, links and all names reach
the hosts unchanged. It contains no owners and times.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from kit.code.folder import Entry
from kit.errors import InputError, KitError

BLOCK = 2**20
"""Bytes that are read at once."""
END = bytes(2 * tarfile.BLOCKSIZE)


def digest(entries: Sequence[Entry]) -> str:
    """Return the SHA-256 of the archive, in hexadecimal digits.

    Raises:
        InputError: A file cannot be read.
    """
    found = hashlib.sha256()
    for block in blocks(entries):
        found.update(block)
    return found.hexdigest()


def packed(entries: Sequence[Entry], sha256: str, folder: Path) -> Iterator[bytes]:
    """Yield the archive, once it is written and has this SHA-256; `folder` is for messages.

    Raises:
        InputError: A file cannot be read, or the folder has changed.
        KitError: The disk has no space for the archive.
    """
    found = hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        for block in blocks(entries):
            found.update(block)
            try:
                file.write(block)
            except OSError as error:
                where = f"{tempfile.gettempdir()}: cannot be written: {error.strerror}"
                raise KitError(where, "make room, or set TMPDIR") from None
        if found.hexdigest() != sha256:
            what = f"{folder} has changed since `kit render`"
            fix = "run `kit render`, and deploy again; write growing logs to another folder"
            raise InputError(what, fix)
        file.seek(0)
        yield from iter(partial(file.read, BLOCK), b"")


def blocks(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Yield the archive."""
    for entry in entries:
        yield _header(entry)
        if not (entry.folder or entry.link):
            yield from _content(entry)
    yield END


def _header(entry: Entry) -> bytes:
    info = tarfile.TarInfo(entry.name)
    info.mode = entry.mode
    if entry.folder:
        info.type = tarfile.DIRTYPE
    elif entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    else:
        info.size = entry.size
    return info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")


def _content(entry: Entry) -> Iterator[bytes]:
    try:
        with entry.path.open("rb") as file:
            yield from _exactly(file, entry)
    except OSError as error:
        raise InputError(f"{entry.path}: cannot be read: {error.strerror}") from None
    yield bytes(-entry.size % tarfile.BLOCKSIZE)


def _exactly(file: IO[bytes], entry: Entry) -> Iterator[bytes]:
    left = entry.size
    while left:
        block = file.read(min(BLOCK, left))
        if not block:
            raise InputError(f"{entry.path} became shorter while it was read", "try again")
        left -= len(block)
        yield block
