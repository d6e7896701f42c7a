"""Loads the tokens of a job, from a packed folder or from texts that are packed now."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from trainer.contract.job import Train
from trainer.contract.samples import VOCABULARY
from trainer.data.files import DataMissingError, is_packed
from trainer.data.samples import DataError, DataSet
from trainer.output import say
from trainer.store.locks import locked
from trainer.text.pack import described, pack, read_tokenizer
from trainer.text.packed import load_packed

FOLDER = "tokens"
"""The folder of the tokens of a job's own texts, beside its checkpoints."""


def load_tokens(train: Train, root: Path, files: list[Path]) -> DataSet:
    """Load a job's texts as tokens; `files` are those at its path below `root`.

    The first process of a host tokenizes them; the others wait for it. A later start reuses the
    tokens, if texts and tokenizer are the same. Raises DataError.
    """
    source = root / train.path
    if is_packed(source):
        return load_packed(source, train.context)
    tokenizer = None if train.tokenizer == "bpe" else root / str(train.tokenizer)
    place = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints") / FOLDER
    folder = place / _key(train, files, tokenizer)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked(place / ".lock"):
            if not is_packed(folder):
                _clear(place)
                say(f"tokenizes {source}, once on this host")
                manifest = pack(
                    files,
                    folder,
                    tokenizer=tokenizer,
                    vocabulary=train.vocabulary,
                    separator=train.separator,
                )
                say(f"{folder}: {described(manifest)}")
    except OSError as error:
        raise DataError(
            f"{place}: tokens could not be written ({error}); make room there"
        ) from error
    return load_packed(folder, train.context)


def _key(train: Train, files: list[Path], tokenizer: Path | None) -> str:
    """Return a hash of the options and files, without reading the texts, which may be large."""
    about: list[object] = [train.tokenizer, train.vocabulary or VOCABULARY, train.separator]
    if tokenizer:
        about.append(read_tokenizer(tokenizer))
    for file in files:
        try:
            found = file.stat()
        except OSError as error:
            raise DataMissingError(f"{file} cannot be read ({error}); put it there") from error
        about.append((os.fspath(file), found.st_size, found.st_mtime_ns, found.st_ino))
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _clear(place: Path) -> None:
    """Remove the tokens of other texts and of interrupted processes."""
    for each in place.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
