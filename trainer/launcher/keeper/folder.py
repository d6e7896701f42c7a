"""The folder of the versions of this host."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trainer.launcher.keeper.output import KeeperError
from trainer.launcher.keeper.version import Term, Version, read_version

PIECE = 1 << 20
FICLONE = 0x40049409  # ioctl: share the blocks of another file (linux/fs.h).
MANIFEST = "manifest.json"
Signature = tuple[int, int, int]


def signature(path: Path) -> Signature | None:
    """A value that changes with each write to a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class Versions:
    """A folder for each version, with its manifest and its files, named by their numbers."""

    def __init__(self, folder: Path, paths: Sequence[str], keep: int) -> None:
        self.folder, self._paths, self._keep = folder, paths, keep
        self._verified: dict[str, list[Signature | None]] = {}  # Verified by this process.
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".new-*"):  # Of a keeper that was killed.
            shutil.rmtree(left, ignore_errors=True)

    def all(self) -> list[Version]:
        """The versions, the newest first."""
        found = []
        for manifest in self.folder.glob(f"*/{MANIFEST}"):
            with suppress(OSError, KeeperError):
                found.append(read_version(manifest.read_bytes(), self._paths))
        return sorted(found, key=lambda version: version.order, reverse=True)

    def file(self, version: Version, index: int) -> Path:
        """The copy of a file of a version."""
        return self.folder / version.id / str(index)

    def draft(self) -> Path:
        """Create a folder that `add` turns into a version."""
        return Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))

    def add(self, draft: Path, version: Version) -> None:
        """Turn a draft with all its files into a version, and remove the oldest versions."""
        write_durably(draft / MANIFEST, json.dumps(asdict(version)).encode())
        # Before other processes can see the files, and damage them.
        written = [signature(draft / str(index)) for index in range(len(version.files))]
        draft.rename(self.folder / version.id)
        sync_folder(self.folder)
        self._verified[version.id] = written
        for old in self.all()[self._keep :]:
            self.remove(old)

    def remove(self, version: Version) -> None:
        """Remove a version, its manifest first: after an interruption it is not a version."""
        (self.folder / version.id / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder / version.id, ignore_errors=True)

    def holds(self, version: Version) -> bool:
        """Whether the copies of a version are undamaged."""
        before = self._state(version)
        if self._verified.get(version.id) == before and all(before):
            return True
        try:
            for index, each in enumerate(version.files):
                if digest(self.file(version, index)) != each.sha256:
                    return False
        except OSError:
            return False
        self._verified[version.id] = before
        return True

    def _state(self, version: Version) -> list[Signature | None]:
        return [signature(self.file(version, index)) for index in range(len(version.files))]

    def term(self) -> tuple[Term, int]:
        """The last term in which this host took part, and its group rank in it."""
        try:
            number, began, leader, rank = json.loads((self.folder / "term.json").read_bytes())
            return Term(int(number), float(began), str(leader)), int(rank)
        except (OSError, ValueError, TypeError):
            return Term(), 0

    def begin_term(self, term: Term, rank: int) -> None:
        """Record a term before its first version."""
        write_durably(self.folder / "term.json", json.dumps([*term, rank]).encode())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically; after a power cut it is the old one or the new one."""
    new = path.with_name(f".new-{path.name}")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def copy(source: Path, target: Path) -> str:
    """Copy a file to the disk; return the SHA-256 of the copy.

    A script may overwrite its file in place, so that a hard link would change with it.
    """
    with source.open("rb") as read, target.open("xb") as written:
        try:
            fcntl.ioctl(written, FICLONE, read.fileno())
        except OSError:  # Not on this file system, or not between these two.
            shutil.copyfileobj(read, written, PIECE)
        written.flush()
        os.fsync(written.fileno())
    return digest(target)
