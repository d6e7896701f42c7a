"""The files that a script writes in its working folder."""

import fcntl
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.launcher.keeper.folder import Signature, Versions, copy, digest, signature, sync_folder
from trainer.launcher.keeper.output import KeeperError, tell
from trainer.launcher.keeper.version import Content, Version


def unfinished(path: Path) -> str:
    """The reason why a file is not complete, or "".

    The directory of a zip file, such as PyTorch's, is written last. A lease for reading is refused
    while a process has the file open for writing (fcntl(2)).
    """
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return "a process writes it"
        except OSError:  # Of another user, or on a file system without leases.
            pass
        start = file.read(4)
        if not start:
            return "it is empty"
        if start == b"PK\3\4":
            try:
                with zipfile.ZipFile(file) as archive:
                    for member in archive.infolist():
                        archive.open(member).close()
            except (zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError) as error:
                return f"it is a broken zip file: {error}"
    return ""


class Files:
    """The files of a script in its working folder."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._places = [Path(path) for path in paths]
        self._known: tuple[Signature | None, ...] = ()
        self._content: tuple[Content, ...] = ()  # Of the known state.
        self._last: tuple[Signature | None, ...] = ()
        self._said = ""

    def now(self) -> tuple[Signature | None, ...]:
        """The present state of all files."""
        return tuple(map(signature, self._places))

    def location(self) -> list[list[int]]:
        """A value that is equal on two hosts only if they share the files' folders."""
        found = []
        for place in self._places:
            with suppress(OSError):
                about = place.parent.stat()
                found.append([about.st_ino, about.st_ctime_ns])
        return found

    def take(self, draft: Callable[[], Path], *, ended: bool) -> tuple[Path, list[Content]] | None:
        """Copy files that have changed and settled to a draft; None if there are none.

        `ended`: whether no script runs that could write. Raises OSError if the disk is full.
        """
        now = self.now()
        settled, self._last = ended or now == self._last, now
        if now == self._known or not any(now):
            return None
        present = [(path, Path(path)) for path, found in zip(self.paths, now, strict=True) if found]
        try:
            for path, place in present:
                if why := unfinished(place):
                    self._warn(f"{path} is not complete ({why})" if ended else "")
                    return None
            # A single complete zip file has settled; of several files, others may follow.
            if not settled and not (len(present) == 1 and zipfile.is_zipfile(present[0][1])):
                return None
        except FileNotFoundError:
            return None
        folder = draft()
        try:
            contents = []
            for index, (path, place) in enumerate(present):
                sha256 = copy(place, folder / str(index))
                contents.append(Content(path, (folder / str(index)).stat().st_size, sha256))
        except FileNotFoundError:
            contents = []
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not contents or self.now() != now:  # The script has changed them during the copy.
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._known, self._content = now, tuple(contents)
        return folder, contents

    def modified(self) -> float:
        """The time of the last write, by the clock of this host or of the file server."""
        return max((found[2] for found in self.now() if found), default=0) / 1e9

    def put(self, version: Version, versions: Versions) -> bool:
        """Put each file of a version in place atomically; return whether one had to be changed.

        Raises KeeperError if a copy is damaged; the file is then not changed.
        """
        changed = False
        if self._content == version.files and self._known == self.now():
            return False
        for index, each in enumerate(version.files):
            place = Path(each.path).resolve()  # A link stays a link.
            with suppress(OSError):
                if place.stat().st_size == each.size and digest(place) == each.sha256:
                    continue
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".{place.name}.kit-{os.getpid()}")
            new.unlink(missing_ok=True)
            try:
                if copy(versions.file(version, index), new) != each.sha256:
                    what = f"the copy of {each.path} in {versions.folder / version.id}"
                    raise KeeperError(f"{what} is not what was written")
                new.replace(place)
            finally:
                new.unlink(missing_ok=True)
            sync_folder(place.parent)
            changed = True
        self._known = self._last = self.now()
        self._content = version.files
        return changed

    def _warn(self, text: str) -> None:
        if text and text != self._said:
            self._said = text
            tell(f"warning: {text}: no version is saved")
