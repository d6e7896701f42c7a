"""Folders, files and archives of the storage host, and uploads."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from trainer.contract.sources import is_archive
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.manifest import check_path, list_files
from trainer.datasets.sources.archives import unpack
from trainer.datasets.sources.several import Report

UPLOADS = ".uploads"
"""The folder of the store with received files."""


def from_path(path: Path, folder: Path, store: Path, report: Report) -> tuple[str, ...]:
    """Copy a folder or file, or unpack an archive; uploads are moved.

    Return the hidden files and folders of a folder, which are left out.
    """
    if not path.exists():
        fix = "give torchvision:NAME, https://…, s3://…, hf://… or a path in this container"
        raise DataSetError(f"there is no {path}", fix, MISTAKE)
    own = path.resolve().is_relative_to((store / UPLOADS).resolve())
    if own and path.is_dir():
        files = [each for each in path.rglob("*") if each.is_file()]
        path = files[0] if len(files) == 1 else path
    if path.is_file() and is_archive(path.name):
        unpack(path, path.name, folder, report)
    elif path.is_file():
        check_path(path.name)
        copy(path.parent, [(path.name, path.stat().st_size)], folder, report, move=own)
    else:
        left_out = list[str]()
        copy(path, list_files(path, left_out), folder, report, move=own)
        return tuple(left_out)
    return ()


def copy(
    source: Path, files: list[tuple[str, int]], folder: Path, report: Report, *, move: bool
) -> None:
    """Copy or move files, by their paths below `source`."""
    done, total = 0, sum(size for _, size in files)
    if not move:
        require_room(folder, total)
    for path, size in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            (source / path).rename(target)
        else:
            shutil.copyfile(source / path, target, follow_symlinks=False)
        done += size
        report("copying", done, total)


def find_offset(path: Path) -> int:
    """The number of received bytes of an upload."""
    return path.stat().st_size if path.exists() else 0


def receive(path: Path, offset: int, blocks: Iterable[bytes]) -> int:
    """Append blocks to an upload that ends at `offset`; return its size. Raises DataSetError."""
    if offset != (there := find_offset(path)):
        what = f"{path.name} has {there} bytes, not {offset}"
        raise DataSetError(what, f"continue with --offset {there}", MISTAKE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as target:
        for block in blocks:
            require_room(path.parent, len(block))
            target.write(block)
    return find_offset(path)
