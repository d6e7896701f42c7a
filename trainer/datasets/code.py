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
"""The versions of code that stay: those of an afternoon of edits."""


class Report(Protocol):
    """Prints a line, for people or programs."""

    def line(self, text: str, **values: object) -> None:
        """Print the text for people, the values for programs."""


Add = Callable[[Path, str, str, str], Manifest]
"""Adds version 1 of a name from an upload: the store, the name, the source, its description."""


def put(options: argparse.Namespace, report: Report, add: Add) -> None:
    """Store the code that standard input has, if it is not there; the oldest code goes.

    The sender waits for `send`: what is there is not sent again. Several may send the same.

    Raises:
        DataSetError: What has arrived is not all of it, or there is no room.
    """
    store, name = options.store, check_name(options.name)
    place = Place(store, name, 1)
    if place.complete:
        os.utime(place.mark)  # It is among the newest again.
    else:
        report.line(f"send {name}", state="send")
        folder = store / UPLOADS / f"{name}.{secrets.token_hex(4)}"
        try:
            receive(folder / ARCHIVE, 0, blocks(sys.stdin.buffer))
            verify(folder / ARCHIVE, name)
            with locked(store / UPLOADS / f"{PREFIX}lock"):
                if not place.complete:
                    # A name stands for its content: removed, it may come again.
                    (store / name / ".last").unlink(missing_ok=True)
                    add(store, name, str(folder / ARCHIVE), options.described)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for old in superseded(store, {name, *options.keep}):
        remove(old)
    report.line(f"{name} is stored", state="done", name=name, bytes=place.read().bytes)


def verify(archive: Path, name: str) -> None:
    """Compare an archive with its name; raises DataSetError.

    A connection that is lost looks like the end of the input.
    """
    with archive.open("rb") as file:
        version = hashlib.file_digest(file, "sha256").hexdigest()
    if code_name(version) != name:
        what = f"what has arrived is not {name}: the connection was lost"
        raise DataSetError(what, "deploy again", FAILURE)


def superseded(store: Path, kept: set[str]) -> Iterator[Place]:
    """Yield the code that nobody needs: not `kept`, not of the newest, and not in use."""
    code = [each for each in find_places(store) if each.name.startswith(PREFIX) and each.complete]
    code.sort(key=lambda each: each.mark.stat().st_mtime, reverse=True)
    for place in code[KEPT:]:
        if place.name not in kept and not in_use(place):
            yield place


def blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what a stream has."""
    while block := stream.read(BLOCK):
        yield block
