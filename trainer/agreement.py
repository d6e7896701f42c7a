"""What all ranks must agree on, and how they end together when going on would be wrong."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from trainer.world import World

CHUNK = 2**16  # Values; small enough for a CPU's cache.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class HaltError(Exception):
    """A failure that all ranks know of, and that a restart would only repeat."""


def leave_word(text: str) -> bool:
    """Leave in the launcher's file, KIT_HALT, why not to start again; return if there is one."""
    file = os.environ.get("KIT_HALT")
    if file:
        Path(file).write_text(text)
    return bool(file)


def heed_word(world: World) -> None:
    """Raise HaltError, on all ranks, if one has left word before the workers were started again."""
    file = os.environ.get("KIT_HALT")
    words = world.gather(Path(file).read_text() if file else "")
    if word := next(filter(None, words), ""):
        raise HaltError(word)


@torch.no_grad()
def fingerprint(model: nn.Module) -> int:
    """A hash of the bits of all parameters and buffers, the same on every device.

    The bits of each value in a chunk, times an odd number of its own, are added up modulo 2^64:
    integers, so the order does not matter, and a single changed value always shows.
    """
    tensors = [tensor.reshape(-1) for tensor in (*model.parameters(), *model.buffers())]
    odd = torch.arange(1, 2 * CHUNK, 2, device=tensors[0].device)
    sums = [
        (odd[: len(part)] * part).sum()
        for tensor in tensors
        for part in torch.split(tensor.view(INTEGERS[tensor.element_size()]), CHUNK)
    ]
    return hash(tuple(torch.stack(sums).tolist()))


def require_equal(world: World, model: nn.Module) -> None:
    """Raise HaltError, on all ranks, if one has other parameters or buffers than most have."""
    found = world.gather((fingerprint(model), world.name))
    usual = Counter(value for value, _ in found).most_common(1)[0][0]
    others = ", ".join(who for value, who in found if value != usual)
    if others:
        first = next(who for value, who in found if value == usual)
        raise HaltError(f"parameters of {others} are not those of {first}: nothing was saved")
