"""A folder or an archive of this machine as one stream of bytes that can be resumed anywhere.

A folder is sent as a tar archive whose bytes depend only on the names, sizes and contents of its
files, so that a second attempt continues where the first one ended. A request for each file would
take a container for each, and a data set may have a million files. The cost is disk space for the
archive on the storage host while it is unpacked.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kit.errors import InputError, KitError
from trainer.contract.sources import ARCHIVE_ENDS, is_archive, is_hidden

BLOCK = 2**20
"""Bytes that are read at once."""


@dataclass(frozen=True)
class Member:
    """A file of the folder, with its name in the archive."""

    name: str
    path: Path
    size: int
    changed: int

    @cached_property
    def header(self) -> bytes:
        """The header in the archive: only name and size, so that it is the same every time."""
        info = tarfile.TarInfo(self.name)
        info.size = self.size
        return info.tobuf(tarfile.PAX_FORMAT)

    @property
    def padding(self) -> int:
        """The zero bytes after the content."""
        return -self.size % tarfile.BLOCKSIZE

    @property
    def length(self) -> int:
        """The bytes in the archive."""
        return len(self.header) + self.size + self.padding


@dataclass(frozen=True)
class Upload:
    """A source of this machine: an archive, or the members of a folder."""

    members: tuple[Member, ...]
    archive: bool
    left_out: tuple[str, ...] = ()
    """The hidden files and folders of the folder, which are not sent."""

    @cached_property
    def total(self) -> int:
        """The bytes of the stream."""
        if self.archive:
            return self.members[0].size
        return sum(member.length for member in self.members) + 2 * tarfile.BLOCKSIZE

    @cached_property
    def name(self) -> str:
        """The stream's name on the storage host: a changed source has another one."""
        described = [(each.name, each.size, each.changed) for each in self.members]
        digest = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
        first = self.members[0].path.name.lower()
        suffix = next((end for end in ARCHIVE_ENDS if self.archive and first.endswith(end)), ".tar")
        return f"{digest}{suffix}"

    def read(self, offset: int) -> Iterator[bytes]:
        """Yield the stream from an offset on.

        Raises:
            KitError: A file has changed or cannot be read.
        """
        if self.archive:
            yield from _content(self.members[0], offset)
            return
        for member in self.members:
            if offset < member.length:
                yield from _member(member, offset)
                offset = 0
            else:
                offset -= member.length
        yield bytes(2 * tarfile.BLOCKSIZE)[offset:]


def upload_of(source: Path) -> Upload:
    """Return a folder, an archive or a single file as an upload.

    Raises:
        InputError: There is no such file, or the folder has links or no file.
    """
    try:
        if source.is_dir():
            left_out = list[str]()
            members = tuple(_files(source, "", left_out))
            if not members:
                raise InputError(f"{source}: the folder has no file", "name a folder with files")
            return Upload(members, archive=False, left_out=tuple(left_out))
        member = _plain_file(source, source.name)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return Upload((member,), archive=is_archive(source.name))


def _files(folder: Path, above: str, left_out: list[str]) -> Iterator[Member]:
    """Yield the files in a fixed order, without those that are hidden."""
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        path, name = Path(entry.path), f"{above}{entry.name}"
        if is_hidden(entry.name):
            left_out.append(name)
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(path, f"{name}/", left_out)
        else:
            yield _plain_file(path, name)


def _plain_file(path: Path, name: str) -> Member:
    attributes = path.lstat()
    if not stat.S_ISREG(attributes.st_mode):
        what = "a link" if stat.S_ISLNK(attributes.st_mode) else "no plain file"
        raise InputError(f"{path}: is {what}", "a data set has plain files: copy it")
    return Member(name, path, attributes.st_size, attributes.st_mtime_ns)


def _member(member: Member, offset: int) -> Iterator[bytes]:
    """Yield a member's bytes in the archive from an offset on."""
    head = len(member.header)
    if offset < head:
        yield member.header[offset:]
    yield from _content(member, max(0, offset - head))
    past = max(0, offset - head - member.size)
    if member.padding > past:
        yield bytes(member.padding - past)


def _content(member: Member, offset: int) -> Iterator[bytes]:
    left = member.size - offset
    if left <= 0:
        return
    try:
        with member.path.open("rb") as file:
            file.seek(offset)
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    raise KitError(f"{member.path} became shorter while it was sent", "try again")
                left -= len(block)
                yield block
    except OSError as error:
        raise KitError(f"{member.path}: cannot be read: {error.strerror}") from None
