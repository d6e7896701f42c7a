"""The files of a folder that are sent with a job, and the files that are left out."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kit.code.ignore import ALWAYS, SECRETS, Ignored, rules_of
from kit.errors import InputError, one_line
from kit.values import count, show_bytes

LARGEST = 256 * 2**20
"""Bytes that a job's code may have: every edit sends all of it to every host."""
MOST = 20_000
"""Files and folders that a job's code may have. A virtual environment has more."""
NAMED = 3
"""The largest entries that an error names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a link or an empty folder, by its name below the folder; `link` is the target.

    `mode` is 0o755 or 0o644, `size` in bytes.
    """

    name: str
    path: Path
    size: int
    mode: int
    link: str = ""
    folder: bool = False


@dataclass(slots=True)
class Listing:
    """The files to send, in a fixed order, and those left out although no rule excludes them.

    `secrets` and `left_out` are names; each name in `left_out` has the reason after it.
    """

    entries: list[Entry] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.entries)


def list_code(
    folder: Path,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    own: Collection[Path] = (),
) -> Listing:
    """List the files of a folder that are sent with a job.

    `exclude` are patterns of .gitignore. `include` are files and folders that kit sends
    although a pattern excludes them. `own` are files and folders of kit: a render or a split
    would change the code.

    Raises:
        InputError: The folder cannot be read, has no file, or has too much.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder", "name the folder with the code")
    names = frozenset(PurePosixPath(each) for each in include)
    walk = _Walk(folder, names, frozenset(each.resolve() for each in own))
    try:
        walk.list(folder, rules_of(folder, exclude))
    except OSError as error:
        what = f"{error.filename}: cannot be read: {error.strerror}"
        raise InputError(what, "`exclude` leaves it out") from None
    listing = walk.listing
    for name in sorted(names):
        if not any(PurePosixPath(each.name).is_relative_to(name) for each in listing.entries):
            raise InputError(f"{folder / name}: there is no such file", "correct `include`")
    if not any(not each.folder for each in listing.entries):
        raise InputError(f"{folder}: the folder has no file to send", "see `exclude`, .gitignore")
    if listing.size > LARGEST:
        what = f"{folder} has {show_bytes(listing.size)} in {count(len(listing.entries), 'file')}"
        raise _too_large(listing.entries, what)
    return listing


def _too_large(entries: Sequence[Entry], what: str) -> InputError:
    sizes = Counter[str]()
    for each in entries:
        first, slash, _ = each.name.partition("/")
        sizes[f"{first}{slash}"] += each.size
    largest = sizes.most_common(NAMED)
    named = ", ".join(f"{printable(name)} has {show_bytes(size)}" for name, size in largest)
    most = f"code has at most {show_bytes(LARGEST)} in {MOST:,} files"
    fix = f"leave out what the job does not read, as in `code: {{exclude: [{largest[0][0]}]}}`"
    return InputError(f"{what}, and {most}: {named}", f"{fix}; data is for `kit data add`")


class _Walk:
    """A walk through a folder."""

    def __init__(self, root: Path, include: frozenset[PurePosixPath], own: frozenset[Path]) -> None:
        self.listing = Listing()
        self._root, self._include, self._own = root, include, own
        self._output = set(_output())

    def list(self, folder: Path, above: Ignored) -> bool:
        """List a folder; return whether it has anything to send."""
        rules, found = above.within(folder), False
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
            name = path.relative_to(self._root).as_posix()
            if not self._wanted(path, name, rules, folder=is_folder):
                continue
            if not is_folder:
                found |= self._file(path, name)
            elif self.list(path, rules):
                found = True
            elif not rules.excludes(path, folder=False):
                self._add(Entry(name, path, 0, 0o755, folder=True))
                found = True
        return found

    def _wanted(self, path: Path, name: str, rules: Ignored, *, folder: bool) -> bool:
        if path in self._own or path.name in ALWAYS:
            return False
        if any(PurePosixPath(name).is_relative_to(each) for each in self._include):
            return True
        if any(each.is_relative_to(name) for each in self._include):
            return True
        shown = f"{name}/" if folder else name
        if rules.excludes(path, folder=folder):
            return False
        if folder and (path / "pyvenv.cfg").exists():  # A virtual environment (PEP 405).
            return False
        if SECRETS.match_file(shown):
            self.listing.secrets.append(printable(shown))
            return False
        return True

    def _file(self, path: Path, name: str) -> bool:
        attributes = path.lstat()
        if stat.S_ISLNK(attributes.st_mode):
            return self._link(path, name)
        if not stat.S_ISREG(attributes.st_mode):
            self.listing.left_out.append(f"{printable(name)} (no plain file)")
            return False
        if (attributes.st_dev, attributes.st_ino) in self._output:
            return False
        mode = 0o755 if attributes.st_mode & stat.S_IXUSR else 0o644
        self._add(Entry(name, path, attributes.st_size, mode))
        return True

    def _link(self, path: Path, name: str) -> bool:
        target = str(path.readlink())
        end = Path(os.path.normpath(path.parent / target))
        if target.startswith("/") or not end.is_relative_to(self._root):
            what = f"{name} (a link to {target}, outside the folder)"
            self.listing.left_out.append(printable(what))
            return False
        self._add(Entry(name, path, 0, 0o644, link=target))
        return True

    def _add(self, entry: Entry) -> None:
        self.listing.entries.append(entry)
        if len(self.listing.entries) > MOST:
            raise _too_large(self.listing.entries, f"{self._root} has more than {MOST:,} files")


def _output() -> Iterator[tuple[int, int]]:
    """Yield the files that receive this process's output: they change with every line."""
    for descriptor in (1, 2):
        with suppress(OSError):
            attributes = os.fstat(descriptor)
            yield attributes.st_dev, attributes.st_ino


def printable(name: str) -> str:
    """Return a file's name as one line of text: Linux allows all bytes but two."""
    return one_line(os.fsencode(name).decode(errors="backslashreplace"))
