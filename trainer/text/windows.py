"""A text as windows of its characters or tokens, cut at another place in each epoch.

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
"""A random stream of its own, independent of the order of samples."""


@dataclass(frozen=True, eq=False)
class Windows(Samples):
    """Windows of tokens, each labelled with the next one; the ends of windows are shared.

    A window's number is its place among those that begin at the same offset, plus N for each token
    of the offset. If they always began at the multiples of T, a model would see each token at one
    place of its window alone, and never with the tokens of the window before. nanoGPT draws the
    place of each window (get_batch); here the windows of an epoch follow each other, so that it has
    each token once, but for the offset at its beginning and an overlap at its end.
    """

    tokens: NDArray[Any] = field(kw_only=True)  # Of a type of integers; [tokens of the part].
    hashed: bytes = field(kw_only=True)
    file: Path | None = field(kw_only=True, default=None)

    @staticmethod
    def of(tokens: NDArray[Any], context: int, hashed: bytes, file: Path | None = None) -> Windows:
        """Cut tokens into windows of `context`; `hashed` stands for them when hosts compare."""
        shape = torch.empty(0, context, dtype=torch.int64)
        return Windows(shape, shape, tokens=tokens, hashed=hashed, file=file)

    def __len__(self) -> int:
        return max(0, len(self.tokens) - 1) // self.inputs.shape[1]

    def to(self, device: torch.device) -> Self:  # noqa: ARG002
        """The same: tokens stay where they are until they are used."""
        return self

    @property
    def content(self) -> bytes:
        """A hash of the tokens, and of what made them."""
        return self.hashed

    @property
    def mapped(self) -> list[Path]:
        """As of `Samples`."""
        return [self.file] if self.file else []

    def order(self, seed: int, epoch: int) -> Tensor:
        """As of `Samples`, at an offset of the epoch's own."""
        draw = generator(seed, epoch, OFFSET)
        offset = torch.randint(self.inputs.shape[1], (), generator=draw)
        return permutation(len(self), seed, epoch) + offset * len(self)

    def hold_out(self, share: float, seed: int, like: Self) -> tuple[Self, Self]:  # noqa: ARG002
        """As of `Samples`: the end of the text, as of the test, for any seed."""
        at = len(self.tokens) - int(len(self.tokens) * share)
        words = (self.hashed + bytes(f"{name} {at}", "ascii") for name in ("before", "from"))
        parts = zip((self.tokens[:at], self.tokens[at:]), words, strict=True)
        rest, held = (replace(self, tokens=tokens, hashed=hashed) for tokens, hashed in parts)
        return rest, held

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As of `Samples`: inputs and labels int64 [n, T]. The last window ends with the text."""
        length = self.inputs.shape[1]
        offsets, numbers = np.divmod(indices.numpy(), len(self))
        starts = np.minimum(numbers * length + offsets, len(self.tokens) - length - 1)
        places = starts[:, None] + np.arange(length + 1)
        windows = torch.from_numpy(self.tokens[places].astype(np.int64))
        if device.type == "cuda":  # From pinned memory, while the GPU computes.
            windows = windows.pin_memory().to(device, non_blocking=True)
        # Copies: labels of padding are overwritten, which must not change inputs.
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
