"""Tokenizes texts once, into a folder that a job then reads at once.

    python -m trainer.text.pack SOURCE FOLDER [--tokenizer FILE | --vocabulary 8192]
                                [--separator TEXT]

SOURCE is a text in UTF-8, a file *.jsonl, or a folder of either. Then `path: FOLDER`, below the
data folder, is all that a job needs.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from trainer.contract.samples import BYTES, VOCABULARY
from trainer.data.files import DataMissingError, find_texts
from trainer.data.samples import DataError
from trainer.output import say, say_error
from trainer.text.documents import Piece, count_bytes, divide, read_documents
from trainer.text.packed import PARTS, TOKENIZER, Manifest, Part
from trainer.text.vocabulary import TokenizerError, Tokens, train_tokenizer

BATCH = 64
"""Pieces that are tokenized together, by all cores."""


def pack(
    files: list[Path],
    folder: Path,
    *,
    tokenizer: Path | None = None,
    vocabulary: int | None = None,
    separator: str | None = None,
) -> Manifest:
    """Write the tokens of text files atomically to a folder, which must not exist yet.

    Without the file of a trained `tokenizer`, one of `vocabulary` tokens is trained on the training
    part. The same files give the same bytes. Raises DataError or OSError.
    """
    if folder.exists():
        raise DataError(f"{folder} exists; name another folder")
    total = count_bytes(read_documents(files, separator))
    if not total:
        raise DataError(f"{files[0].parent}: its texts are empty; put texts there")

    def parts() -> Iterator[tuple[bool, Piece]]:
        return divide(read_documents(files, separator), total)

    if tokenizer is None:
        trained = (piece.text for tested, piece in parts() if not tested)
        content = train_tokenizer(trained, vocabulary or VOCABULARY)
    else:
        content = read_tokenizer(tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tokens-", dir=folder.parent) as place:
        draft = Path(place, "draft")
        draft.mkdir()
        manifest = _write(draft, parts(), content)
        draft.rename(folder)
    return manifest


def read_tokenizer(file: Path) -> str:
    """Read a tokenizer.json; raises DataError."""
    try:
        content = file.read_text("utf-8")
        Tokens(content)
    except (OSError, ValueError, TokenizerError) as error:
        raise DataError(f"{file}: {error}; name a tokenizer.json of the package") from error
    return content


def _write(folder: Path, parts: Iterator[tuple[bool, Piece]], content: str) -> Manifest:
    tokens = Tokens(content)
    (folder / TOKENIZER).write_text(content, "utf-8")
    kind = np.dtype("<u2" if tokens.size <= 2**16 else "<u4")
    found = {name: _Count() for name in PARTS}
    with (folder / "train.bin").open("wb") as train, (folder / "test.bin").open("wb") as test:
        while some := list(islice(parts, BATCH)):
            encoded = tokens.encode_all([piece.text for _, piece in some])
            for (tested, piece), ids in zip(some, encoded, strict=True):
                numbers = np.array([tokens.start] * piece.begins + ids, kind).tobytes()
                (test if tested else train).write(numbers)
                count = found[PARTS[tested]]
                count.hashed.update(numbers)
                count.tokens += len(ids) + piece.begins
                count.bytes += len(piece.text.encode())
                count.documents += piece.begins
    manifest = Manifest(kind.name, found["train"].part(), found["test"].part())
    manifest.write(folder)
    return manifest


class _Count:
    """The state of a part while it is written."""

    def __init__(self) -> None:
        self.tokens = self.bytes = self.documents = 0
        self.hashed = hashlib.sha256()

    def part(self) -> Part:
        return Part(self.tokens, self.bytes, self.documents, self.hashed.hexdigest())


def main() -> int:
    """Tokenize a source."""
    parser = argparse.ArgumentParser(prog="trainer.text.pack", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a trained tokenizer.json")
    parser.add_argument("--vocabulary", type=int, help=f"tokens to train, {VOCABULARY} if not said")
    parser.add_argument("--separator", help="a line between documents")
    options = parser.parse_args()
    if options.tokenizer and options.vocabulary:
        parser.error("a trained tokenizer has its vocabulary: leave out one of the two")
    if options.vocabulary is not None and options.vocabulary <= BYTES:
        parser.error(f"--vocabulary {options.vocabulary}: {BYTES + 1} is the least")
    try:
        files = find_texts(options.source)
        manifest = pack(
            files,
            options.folder,
            tokenizer=options.tokenizer,
            vocabulary=options.vocabulary,
            separator=options.separator,
        )
    except (DataError, DataMissingError, OSError) as error:
        say_error(f"error: {error}")
        return 2
    say(f"{options.folder}: {described(manifest)}")
    return 0


def described(manifest: Manifest) -> str:
    """Describe a folder of tokens for people."""
    return " and ".join(
        f"{part.tokens:,} tokens of {part.documents:,} documents to {name}"
        for name, part in zip(PARTS, (manifest.train, manifest.test), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
