"""Reads documents from text files, and divides them into a training part and a test part.

A file *.txt is one document, or several between lines of a separator. In a file *.jsonl, each line
is a JSON object whose "text" is a document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainer.data.samples import DataError

PIECE = 2**20
"""Characters of a document that are in memory at a time: documents can be larger."""
TRAINED = 9, 10
"""The share of the training part in all bytes, as a fraction; the rest is the test part."""


class Piece(NamedTuple):
    """A part of a document; `begins` marks the first piece of a document."""

    text: str
    begins: bool


def read_documents(files: list[Path], separator: str | None = None) -> Iterator[Piece]:
    """Yield the documents of files in their order, without empty ones; raises DataError."""
    for file in files:
        begins = True
        for text, ends in _lines(file, separator):
            if text:
                yield Piece(text, begins)
                begins = False
            if ends:
                begins = True


def count_bytes(pieces: Iterator[Piece]) -> int:
    """Return the size of the documents in UTF-8."""
    return sum(_size(piece.text) for piece in pieces)


def divide(pieces: Iterator[Piece], total: int) -> Iterator[tuple[bool, Piece]]:
    """Yield each piece with a flag: True for the test part, the last tenth of `total` bytes.

    A document across the boundary is divided between two of its lines or, if the line is long,
    within it. So there is a test part for any documents.
    """
    room, tested = total * TRAINED[0] // TRAINED[1], False
    for piece in pieces:
        first = _first(piece.text, room)
        room -= _size(piece.text)
        if first:
            yield False, Piece(first, piece.begins)
        if rest := piece.text[len(first) :]:
            yield True, Piece(rest, piece.begins or not tested)
            tested = True


def _first(text: str, room: int) -> str:
    """Return the first lines of a text that fit into `room` bytes, or a part of one long line."""
    if room <= 0 or _size(text) <= room:
        return text if room > 0 else ""
    found = text.encode()[:room].decode(errors="ignore")
    return found[: found.rfind("\n") + 1] or found


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _lines(file: Path, separator: str | None) -> Iterator[tuple[str, bool]]:
    """Yield texts of about `PIECE` characters, and whether a document ends after each."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            if file.suffix == ".jsonl":
                for number, line in enumerate(stream, start=1):
                    yield _text_of(line, file, number), True
                return
            found, size = list[str](), 0
            while line := stream.readline(PIECE):
                ends = separator is not None and line.strip() == separator
                if not ends:
                    found.append(line)
                    size += len(line)
                if ends or size >= PIECE:
                    yield "".join(found), ends
                    found, size = [], 0
            yield "".join(found), True
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not a text in UTF-8 ({error}); convert it") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror})") from error


def _text_of(line: str, file: Path, number: int) -> str:
    try:
        content = json.loads(line) if line.strip() else {"text": ""}
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}:{number}: is not JSON ({error}); correct the line") from error
    text = content.get("text") if isinstance(content, dict) else None
    if not isinstance(text, str):
        fix = 'write an object as {"text": "…"} in each line'
        raise DataError(f"{file}:{number}: has no text; {fix}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{file}:{number}: half of a character ({error}); correct it") from error
    return text
