"""The manifest of a version: its files with sizes and SHA-256.

A manifest may come from another host, so every value is checked before it is used. Paths are the
only values that become file names: `check_path` refuses unsafe and misleading ones.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.contract.sources import is_hidden
from trainer.contract.words import shown
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.store.files import digest

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
LONGEST_PATH, LONGEST_PART = 1024, 255  # Bytes; 255 is NAME_MAX of Linux.
LONGEST_TEXT = 1000  # Characters of a licence or source.
HASHERS = min(4, os.cpu_count() or 1)  # Threads; hashlib releases the interpreter's lock.

Progress = Callable[[int], None]
"""A callback that gets the number of bytes since the last call."""


@dataclass(frozen=True)
class File:
    """A file: its path below data/, with slashes, its size and its content's hash."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a version."""

    name: str
    version: int
    files: tuple[File, ...]
    bytes: int
    licence: str
    source: str
    made: str  # UTC, as 2026-11-22T21:00:00Z.
    info_hash: str  # Of dataset.torrent, version 1, hexadecimal.

    @property
    def key(self) -> tuple[str, int]:
        """Name and version."""
        return self.name, self.version

    def text(self) -> str:
        """The content of manifest.json."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def check_name(name: object) -> str:
    """Return a data set's name; raises DataSetError."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    what = f"{shown(name)} is no name of a data set"
    fix = "use up to 63 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
    raise DataSetError(what, fix, MISTAKE)


def check_version(version: object) -> int:
    """Return a version; raises DataSetError."""
    if isinstance(version, int) and not isinstance(version, bool) and 0 < version < 10**9:
        return version
    raise DataSetError(f"version {shown(version)} is no positive whole number", "use 1", MISTAKE)


def check_path(path: object) -> str:
    """Return a file's path in a data set; raises DataSetError if it is unsafe or misleading."""
    fault = "it is no text" if not isinstance(path, str) else _fault_of_path(path)
    if not isinstance(path, str) or fault:
        what = f"the file name {shown(path)} cannot be used: {fault}"
        raise DataSetError(what, "rename the file in the source", MISTAKE)
    return path


def _fault_of_path(path: str) -> str:
    parts = path.split("/")
    try:
        longest, whole = max(len(part.encode()) for part in parts), len(path.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if path.startswith("/"):
        return "it is absolute"
    if ".." in parts:
        return "`..` would leave the folder of the data set"
    if "" in parts or "." in parts:
        return "a part of it is empty or `.`"
    # libtorrent removes some of these, and they could forge log lines.
    if not path.isprintable() or "\\" in path:
        return "it has a control character, an invisible character or a backslash"
    if longest > LONGEST_PART or whole > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes, or a part is longer than {LONGEST_PART}"
    return ""


def parse(content: Any) -> Manifest:
    """Check a manifest from JSON; raises DataSetError."""
    if not isinstance(content, dict):
        raise _broken(f"it is {shown(content)}, not an object")
    try:
        files = tuple(
            File(check_path(each["path"]), _count(each["bytes"]), _hex(each["sha256"], 64))
            for each in content["files"]
        )
        found = Manifest(
            name=check_name(content["name"]),
            version=check_version(content["version"]),
            files=files,
            bytes=_count(content["bytes"]),
            licence=_words(content["licence"]),
            source=_words(content["source"]),
            made=_words(content["made"]),
            info_hash=_hex(content["info_hash"], 40),
        )
    except (KeyError, TypeError) as error:
        raise _broken(f"a value is missing or of the wrong type ({error})") from error
    except DataSetError as error:
        raise _broken(error.message) from error
    if found.bytes != sum(file.bytes for file in files) or not files:
        raise _broken("`bytes` is not the sum of its files, or it has no files")
    check_tree(file.path for file in files)
    return found


def read(path: Path) -> Manifest:
    """Read and check a manifest; raises DataSetError."""
    try:
        return parse(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise _broken(f"{path} cannot be read ({error})") from error


def check_tree(paths: Iterable[str]) -> None:
    """Raise DataSetError if a path occurs twice, or is also the folder of another."""
    every = set[str]()
    for path in paths:
        if path in every:
            raise _broken(f"the file {shown(path)} occurs twice")
        every.add(path)
    folders = {path[:end] for path in every for end in _slashes(path)}
    if both := sorted(folders & every):
        raise _broken(f"{shown(both[0])} is a file and a folder")


def _slashes(path: str) -> Iterator[int]:
    return (index for index, letter in enumerate(path) if letter == "/")


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60:
        return value
    raise TypeError(f"{shown(value)} is no number of bytes")


def _hex(value: object, digits: int) -> str:
    if isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        return value
    raise TypeError(f"{shown(value)} is no hash of {digits} digits")


def _words(value: object) -> str:
    if isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable():
        return value
    raise TypeError(f"{shown(value)} is no line of text")


def _broken(reason: str) -> DataSetError:
    return DataSetError(f"the manifest is not valid: {reason}", "add the data set again")


def list_files(folder: Path, left_out: list[str] | None = None) -> list[tuple[str, int]]:
    """The regular files below a folder with their sizes, sorted by path.

    With a list `left_out`, hidden files and folders are left out, and their paths added to it.
    Raises DataSetError for a symlink, a special file or a name that cannot be used.
    """
    found = sorted(_files(folder, folder, left_out))
    if not sum(size for _, size in found):
        raise DataSetError(f"{folder} has no content", "name a folder that has files", MISTAKE)
    return found


def _files(folder: Path, top: Path, left_out: list[str] | None) -> Iterator[tuple[str, int]]:
    for path in sorted(folder.iterdir()):
        name = str(path.relative_to(top))
        if left_out is not None and is_hidden(path.name):
            left_out.append(name)
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _files(path, top, left_out)
            continue
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "a special file"
            fix = "replace it by the file it stands for, or remove it"
            raise DataSetError(f"{shown(name)} in {top} is {kind}", fix, MISTAKE)
        yield check_path(name), path.stat().st_size


def hash_files(folder: Path, progress: Progress) -> tuple[File, ...]:
    """Hash the files below a folder; raises DataSetError as `list_files`."""
    found = list_files(folder)
    with ThreadPoolExecutor(HASHERS) as pool:
        digests = pool.map(lambda each: digest(folder / each[0], progress, follow=False), found)
        return tuple(File(*each, sha) for each, sha in zip(found, digests, strict=True))


def find_damage(files: Iterable[File], folder: Path, progress: Progress) -> list[str]:
    """Compare files with their hashes; return a line for each file that differs."""
    with ThreadPoolExecutor(HASHERS) as pool:
        lines = pool.map(lambda file: _damage(file, folder, progress), files)
        return [line for line in lines if line]


def _damage(file: File, folder: Path, progress: Progress) -> str:
    try:
        size = (folder / file.path).lstat().st_size
        if size != file.bytes:
            return f"{file.path} has {size} bytes, not {file.bytes}"
        if digest(folder / file.path, progress, follow=False) != file.sha256:
            return f"{file.path} has another SHA-256 than its manifest"
    except OSError as error:
        return f"{file.path} cannot be read ({error.strerror})"
    return ""


def has_sizes(manifest: Manifest, folder: Path) -> bool:
    """Whether all files exist with their sizes; does not read them."""
    try:
        return all((folder / f.path).lstat().st_size == f.bytes for f in manifest.files)
    except OSError:
        return False
