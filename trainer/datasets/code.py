"""The code of jobs in the store: data sets of one file, each named after its content."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from trainer.contract.code import ARCHIVE, PREFIX, code_name
from trainer.datasets.errors import FAILURE, DataSetError
from trainer.datasets.layout import Place, find_places, in_use, remove
from trainer.datasets.manifest import Manifest, check_name
from trainer.datasets.sources.local import UPLOADS, receive
from trainer.datasets.sources.several import BLOCK
from trainer.store.locks import locked

KEPT = 30
"""The number of newest versions that are kept: those of an afternoon of edits."""


class Report(Protocol):
    """Prints a line, for people or programs."""

    def line(self, text: str, **values: object) -> None:
        """Print the text for people, the values for programs."""


Add = Callable[[Path, str, str, str], Manifest]
"""Adds version 1 of a name from an upload: the store, the name, the source, its description."""


def put(options: argparse.Namespace, report: Report, add: Add) -> None:
    """Store the code from standard input, if it is not stored yet; remove the oldest code.

    The sender waits for `send`: stored code is not sent again. Several senders may send the same.

    Raises:
        DataSetError: The upload is incomplete, or the disk is full.
    """
    store, name = options.store, check_name(options.name)
    place = Place(store, name, 1)
    if place.complete:
        os.utime(place.mark)  # It counts as one of the newest again.
    else:
        report.line(f"send {name}", state="send")
        folder = store / UPLOADS / f"{name}.{secrets.token_hex(4)}"
        try:
            receive(folder / ARCHIVE, 0, blocks(sys.stdin.buffer))
            verify(folder / ARCHIVE, name)
            with locked(store / UPLOADS / f"{PREFIX}lock"):
                if not place.complete:
                    # The name depends on the content: after its removal, it may be added again.
                    (store / name / ".last").unlink(missing_ok=True)
                    add(store, name, str(folder / ARCHIVE), options.described)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for old in superseded(store, {name, *options.keep}):
        remove(old)
    report.line(f"{name} is stored", state="done", name=name, bytes=place.read().bytes)


def verify(archive: Path, name: str) -> None:
    """Compare an archive with its name; raises DataSetError.

    A lost connection looks like the end of the input.
    """
    with archive.open("rb") as file:
        version = hashlib.file_digest(file, "sha256").hexdigest()
    if code_name(version) != name:
        what = f"what has arrived is not {name}: the connection was lost"
        raise DataSetError(what, "deploy again", FAILURE)


def superseded(store: Path, kept: set[str]) -> Iterator[Place]:
    """Yield unused code: not in `kept`, not among the newest, and not in use."""
    code = [each for each in find_places(store) if each.name.startswith(PREFIX) and each.complete]
    code.sort(key=lambda each: each.mark.stat().st_mtime, reverse=True)
    for place in code[KEPT:]:
        if place.name not in kept and not in_use(place):
            yield place


def blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a stream."""
    while block := stream.read(BLOCK):
        yield block
