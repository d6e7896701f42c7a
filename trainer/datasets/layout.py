"""The folders of a store and of a cache, which have the same layout.

    <root>/<name>/<version>/manifest.json, dataset.torrent, data/…, COMPLETE

COMPLETE is written last, after all other files are on the disk. A user of a version holds a shared
flock on COMPLETE: the kernel releases it when the process ends, and it works across containers and
on a read-only mount. To remove a version, a process needs the exclusive lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.datasets.errors import DataSetError
from trainer.datasets.manifest import NAME, Manifest, read
from trainer.store.files import replace_file, sync, sync_disk
from trainer.store.locks import take

DRAFT, TRASH = ".draft-", ".trash-"
RESERVE = 2**30  # Bytes that stay free, or RESERVE_SHARE of a smaller disk.
RESERVE_SHARE = 0.02


@dataclass(frozen=True)
class Place:
    """The folder of one version."""

    root: Path
    name: str
    version: int

    @property
    def key(self) -> tuple[str, int]:
        """Name and version."""
        return self.name, self.version

    @property
    def folder(self) -> Path:
        """The folder of all its files."""
        return self.root / self.name / str(self.version)

    @property
    def data(self) -> Path:
        """The folder of the data set's own files."""
        return self.folder / "data"

    @property
    def manifest(self) -> Path:
        """The path of the manifest."""
        return self.folder / "manifest.json"

    @property
    def torrent(self) -> Path:
        """The path of the torrent file."""
        return self.folder / "dataset.torrent"

    @property
    def mark(self) -> Path:
        """The path of the file COMPLETE, which marks a complete version."""
        return self.folder / "COMPLETE"

    @property
    def complete(self) -> bool:
        """Whether readers may use it."""
        return self.mark.exists()

    def read(self) -> Manifest:
        """Read the manifest; also raises DataSetError if it is for another version."""
        manifest = read(self.manifest)
        if manifest.key != self.key:
            what = f"{self.manifest} is of {manifest.name}@{manifest.version}"
            raise DataSetError(what, "add the data set again")
        return manifest


def find_places(root: Path) -> list[Place]:
    """All versions below a root, including incomplete ones, sorted."""
    found = []
    for name in sorted(root.iterdir()) if root.is_dir() else []:
        if NAME.fullmatch(name.name) and name.is_dir():
            versions = [int(each.name) for each in name.iterdir() if is_version(each.name)]
            found += [Place(root, name.name, version) for version in sorted(versions)]
    return found


def is_version(text: str) -> bool:
    """Whether a folder's name is a version."""
    return text.isascii() and text.isdecimal() and not text.startswith("0") and len(text) < 10


def index(root: Path) -> dict[str, list[int]]:
    """The complete versions of each name."""
    found: dict[str, list[int]] = {}
    for place in find_places(root):
        if place.complete:
            found.setdefault(place.name, []).append(place.version)
    return found


def complete(place: Place, size: int) -> None:
    """Sync all files to the disk, then write COMPLETE with their total bytes."""
    sync_disk(place.folder)
    replace_file(place.mark, f"{size}\n".encode())
    sync(place.folder.parent)


def remove(place: Place) -> None:
    """Remove a version; raises DataSetError while a process uses it."""
    trash = place.folder.with_name(f"{TRASH}{place.version}")
    with suppress(FileNotFoundError), place.mark.open("rb") as mark:
        if not take(mark):
            what = f"{place.name}@{place.version} is in use"
            raise DataSetError(what, "end the jobs that use it, and try again")
    if trash.exists():
        shutil.rmtree(trash)
    with suppress(FileNotFoundError):
        place.mark.unlink()
        place.folder.rename(trash)
        shutil.rmtree(trash)
    with suppress(OSError):  # Not empty.
        place.folder.parent.rmdir()


def in_use(place: Place) -> bool:
    """Whether a process holds the flock of a version."""
    try:
        with place.mark.open("rb") as mark:
            return not take(mark)
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, what: str, fix: str) -> Iterator[None]:
    """Hold the lock of a file; raises DataSetError if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        if not take(lock):
            lock.seek(0)
            raise DataSetError(f"{what} (process {lock.read().strip() or 'unknown'})", fix)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def room(folder: Path) -> int:
    """The bytes that can be written to a folder's disk without the reserve."""
    usage = shutil.disk_usage(folder)
    return usage.free - min(RESERVE, int(usage.total * RESERVE_SHARE))


def show_bytes(number: float) -> str:
    """Format a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} bytes"


def require_room(folder: Path, needed: int) -> None:
    """Raise DataSetError if a folder's disk has less free space than `needed` bytes."""
    if (left := room(folder)) < needed:
        what = f"the disk of {folder} has room for {show_bytes(max(0, left))}"
        raise DataSetError(f"{what}, and {show_bytes(needed)} are needed", "make room there")
