"""A text as windows of its characters or tokens, with a new random offset in each epoch.

Shapes: N windows, T characters or tokens of a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.samples import Samples
from trainer.data.shards import generator, permutation

OFFSET = 7
"""A separate random stream, independent of the order of samples."""


@dataclass(frozen=True, eq=False)
class Windows(Samples):
    """Windows of tokens; each token's label is the next token. Adjacent windows share one token.

    A window's number is its place among those that begin at the same offset, plus N for each token
    of the offset. If windows always began at the multiples of T, a model would see each token at
    only one place of a window, and never with the tokens of the previous window. nanoGPT draws the
    place of each window (get_batch); here the windows of an epoch are adjacent, so that it has each
    token once, except for the offset at the beginning and an overlap at the end.
    """

    tokens: NDArray[Any] = field(kw_only=True)  # Of a type of integers; [tokens of the part].
    hashed: bytes = field(kw_only=True)
    file: Path | None = field(kw_only=True, default=None)

    @staticmethod
    def of(tokens: NDArray[Any], context: int, hashed: bytes, file: Path | None = None) -> Windows:
        """Cut tokens into windows of `context`; hosts compare `hashed` instead of the tokens."""
        shape = torch.empty(0, context, dtype=torch.int64)
        return Windows(shape, shape, tokens=tokens, hashed=hashed, file=file)

    def __len__(self) -> int:
        return max(0, len(self.tokens) - 1) // self.inputs.shape[1]

    def to(self, device: torch.device) -> Self:  # noqa: ARG002
        """Return this object: tokens are moved only when they are used."""
        return self

    @property
    def content(self) -> bytes:
        """A hash of the tokens and, if they have one, of their tokenizer."""
        return self.hashed

    @property
    def mapped(self) -> list[Path]:
        """As in `Samples`."""
        return [self.file] if self.file else []

    def order(self, seed: int, epoch: int) -> Tensor:
        """As `Samples.order`, at the epoch's random offset."""
        draw = generator(seed, epoch, OFFSET)
        offset = torch.randint(self.inputs.shape[1], (), generator=draw)
        return permutation(len(self), seed, epoch) + offset * len(self)

    def hold_out(self, share: float, seed: int, like: Self) -> tuple[Self, Self]:  # noqa: ARG002
        """As `Samples.hold_out`: the end of the text, as for the test part; ignores the seed."""
        at = len(self.tokens) - int(len(self.tokens) * share)
        words = (self.hashed + bytes(f"{name} {at}", "ascii") for name in ("before", "from"))
        parts = zip((self.tokens[:at], self.tokens[at:]), words, strict=True)
        rest, held = (replace(self, tokens=tokens, hashed=hashed) for tokens, hashed in parts)
        return rest, held

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As `Samples.take`: inputs and labels int64 [n, T]. The last window ends with the text."""
        length = self.inputs.shape[1]
        offsets, numbers = np.divmod(indices.numpy(), len(self))
        starts = np.minimum(numbers * length + offsets, len(self.tokens) - length - 1)
        places = starts[:, None] + np.arange(length + 1)
        windows = torch.from_numpy(self.tokens[places].astype(np.int64))
        if device.type == "cuda":  # From pinned memory, while the GPU computes.
            windows = windows.pin_memory().to(device, non_blocking=True)
        # Copy both: labels of padding are overwritten, which must not change inputs.
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
