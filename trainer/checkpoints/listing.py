"""Lists the checkpoints in a folder by their manifests and sizes, for servers.

Standard library only. Only regular files are read, never through a symbolic link.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainer.checkpoints.layout import COMPLETE, MANIFEST, NAME, STATE, folder_name, newest_step
from trainer.checkpoints.manifest import LARGEST, Manifest, UnusableError, check, parse

Stamp = tuple[tuple[int, ...], ...]
"""File system metadata of a checkpoint's files: it differs if a file has changed."""


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder whose files have the sizes in its manifest."""

    name: str
    written: float  # Time of its latest file, in seconds since 1970.
    manifest: Manifest


class Listing:
    """The checkpoints of a folder; unchanged ones are not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Stamp, Found | str]] = {}

    def look(self) -> tuple[list[Found], dict[str, str]]:
        """Return the complete ones in order of steps, and the faults of the others by name.

        A checkpoint that is being copied is incomplete, in any order of its files.
        """
        try:
            names = [each.name for each in os.scandir(self._folder)]
        except OSError:
            names = []
        known = self._known
        self._known = {}
        for name in sorted(name for name in names if re.fullmatch(NAME, name)):
            try:
                stamp = stamped(self._folder / name)
                before = known.get(name)
                same = before and before[0] == stamp
                self._known[name] = before if before and same else (stamp, self._read(name, stamp))
            except FileNotFoundError:
                continue  # A file is not yet written, or already deleted.
            except OSError as error:
                self._known[name] = (), f"it cannot be read ({error.strerror or error})"
        seen = {name: found for name, (_, found) in self._known.items()}
        whole = [found for found in seen.values() if isinstance(found, Found)]
        return whole, {name: reason for name, reason in seen.items() if isinstance(reason, str)}

    def _read(self, name: str, stamp: Stamp) -> Found | str:
        try:
            manifest = check(parse(read_file(self._folder / name, MANIFEST, LARGEST)))
        except UnusableError as error:
            return str(error)
        if name != folder_name(manifest.step):
            return f"its manifest is of {folder_name(manifest.step)}"
        size = stamp[FILES.index(STATE)][1]
        if size != manifest.size:  # Omit the size: it changes during a copy.
            than = "less" if size < manifest.size else "more"
            return f"{STATE} has {than} than the {manifest.size} bytes of its manifest"
        return Found(name, max(each[2] for each in stamp) / 1e9, manifest)


def newest_manifest(folder: Path) -> Manifest:
    """Return the manifest of the newest complete checkpoint; raises OSError or UnusableError."""
    path = folder / folder_name(newest_step(folder))
    return check(parse(read_file(path, MANIFEST, LARGEST)))


FILES = (MANIFEST, STATE, COMPLETE)


def stamped(path: Path) -> Stamp:
    """Return the stamp of a checkpoint's files; raises OSError if one is missing or a link."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise FileNotFoundError(path)
    found = []
    for file in FILES:
        about = (path / file).lstat()
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{file} is not a file")
        found.append((about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return tuple(found)


def open_file(path: Path, file: str) -> BinaryIO:
    """Open a checkpoint's file for reading, never through a link; raises OSError."""
    inside = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # Without blocking: a named pipe would wait for its writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is not a file")
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, file: str, most: int) -> bytes:
    """Read a checkpoint's file, and one byte more than `most` at most; raises OSError."""
    with open_file(path, file) as stream:
        # Limited to the file's size: `read` allocates as much memory as it is asked for.
        return stream.read(min(most, os.fstat(stream.fileno()).st_size) + 1)
