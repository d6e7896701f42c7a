"""Tokens in a folder: documents one behind the other, as numbers that are mapped into memory.

Shapes: N windows, T tokens of a window.

    tokens.json      the manifest: counts, a hash, the type of the numbers
    tokenizer.json   of the package tokenizers
    train.bin        tokens uint16 or, of more than 65,536, uint32, little-endian
    test.bin

Each document begins with the token that ends texts, as in GPT-2's data. All processes of a host
share one copy of the numbers, in the kernel's page cache.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.files import PACKED
from trainer.data.samples import DataError, DataSet, Samples
from trainer.text.vocabulary import TokenizerError, Tokens

TOKENIZER = "tokenizer.json"
PARTS = ("train", "test")
FORMAT = 1
AGAIN = "make the folder again: python -m trainer.text.pack"


@dataclass(frozen=True)
class Part:
    """The tokens of a part: how many there are, and of how many bytes of text."""

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
        """Write it; a folder with a manifest is complete."""
        (folder / PACKED).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read and check it; raises DataError."""
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


@dataclass(frozen=True, eq=False)
class TokenWindows(Samples):
    """Windows of tokens, each labelled with the next one; the ends of windows are shared."""

    tokens: NDArray[Any] = field(kw_only=True)  # uint16 or uint32, in the page cache.
    hashed: bytes = field(kw_only=True)
    file: Path = field(kw_only=True)

    def __len__(self) -> int:
        return max(0, len(self.tokens) - 1) // self.inputs.shape[1]

    def to(self, device: torch.device) -> Self:  # noqa: ARG002
        """The same: tokens stay where they are until they are used."""
        return self

    @property
    def content(self) -> bytes:
        """A hash of the tokens and the tokenizer."""
        return self.hashed

    @property
    def mapped(self) -> list[Path]:
        """As of `Samples`."""
        return [self.file]

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As of `Samples`: inputs and labels int64 [n, T]."""
        length = self.inputs.shape[1]
        places = indices.numpy()[:, None] * length + np.arange(length + 1)
        windows = torch.from_numpy(self.tokens[places].astype(np.int64))
        if device.type == "cuda":  # From pinned memory, while the GPU computes.
            windows = windows.pin_memory().to(device, non_blocking=True)
        # Copies: labels of padding are overwritten, which must not change inputs.
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


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


def _windows(
    folder: Path, name: str, manifest: Manifest, context: int, tokenizer: str
) -> TokenWindows:
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
    nothing = torch.empty(0, context, dtype=torch.int64)
    hashed = (part.sha256 + tokenizer).encode()
    return TokenWindows(nothing, nothing, tokens=tokens, hashed=hashed, file=file)
