"""Tokens in a folder: concatenated documents, as numbers in memory-mapped files.

    tokens.json      the manifest: counts, a hash, the type of the numbers
    tokenizer.json   of the package tokenizers
    train.bin        tokens uint16 or, of more than 65,536, uint32, little-endian
    test.bin

Each document begins with the token that ends texts, as in GPT-2's data. All processes of a host
share one copy of the numbers, in the kernel's page cache.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from trainer.data.files import PACKED
from trainer.data.samples import DataError, DataSet
from trainer.text.vocabulary import TokenizerError, Tokens
from trainer.text.windows import Windows

TOKENIZER = "tokenizer.json"
PARTS = ("train", "test")
FORMAT = 1
AGAIN = "make the folder again: python -m trainer.text.pack"


@dataclass(frozen=True)
class Part:
    """The numbers of tokens, documents and bytes of text of a part."""

    tokens: int
    bytes: int
    documents: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a folder of tokens."""

    type: str  # uint16 or uint32.
    train: Part
    test: Part
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the manifest; a folder with a manifest is complete."""
        (folder / PACKED).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read and check a manifest; raises DataError."""
        file = folder / PACKED
        try:
            content = json.loads(file.read_text("utf-8"))
            parts = {name: Part(**content.pop(name)) for name in PARTS}
            found = Manifest(content["type"], parts["train"], parts["test"], content["format"])
            sound = found.format == FORMAT and found.type in ("uint16", "uint32")
            for part in parts.values():
                sound = sound and part.tokens >= 0 and part.bytes >= 0 and bool(part.sha256)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{file} is damaged ({error}); {AGAIN}") from error
        if not sound:
            raise DataError(f"{file} is damaged, or of another release; {AGAIN}")
        return found


def load_packed(folder: Path, context: int) -> DataSet:
    """Load a folder of tokens in windows of `context`; raises DataError."""
    manifest = Manifest.read(folder)
    try:
        content = (folder / TOKENIZER).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / TOKENIZER} cannot be read ({error}); {AGAIN}") from error
    try:
        vocabulary = Tokens(content)
    except TokenizerError as error:
        raise DataError(f"{folder / TOKENIZER}: {error}") from error
    train, test = (_windows(folder, name, manifest, context, content) for name in PARTS)
    return DataSet(
        train,
        test,
        torch.zeros(1),
        torch.ones(1),
        vocabulary.size,
        tokenizer=content,
        end=vocabulary.start,
        bytes_per_token=manifest.test.bytes / manifest.test.tokens,
    )


def _windows(folder: Path, name: str, manifest: Manifest, context: int, tokenizer: str) -> Windows:
    part: Part = getattr(manifest, name)
    file, kind = folder / f"{name}.bin", np.dtype(manifest.type).newbyteorder("<")
    if part.tokens <= context:
        few = f"{part.tokens:,} tokens, and train.context {context} needs {context + 1}"
        raise DataError(f"{folder}: its part to {name} has {few} or more; give it more text")
    try:
        tokens = np.memmap(file, kind, mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); {AGAIN}") from error
    if len(tokens) != part.tokens:
        what = f"has {len(tokens):,} tokens, its manifest says {part.tokens:,}"
        raise DataError(f"{file} {what}; {AGAIN}")
    return Windows.of(tokens, context, (part.sha256 + tokenizer).encode(), file)
