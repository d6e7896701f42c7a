"""Checks that the ranks have bit-identical models."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from trainer.parallel.halt import HaltError
from trainer.parallel.world import World

CHUNK = 2**16  # Values of a fingerprint at a time; small enough for a CPU's cache.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def fingerprint(model: nn.Module) -> int:
    """A hash of the bits of all parameters and buffers, the same on every device.

    The bits of each value in a chunk are multiplied by an odd number of its position and summed
    modulo 2^64: integer sums do not depend on the order, and one changed value is always detected.
    """
    tensors = [tensor.reshape(-1) for tensor in (*model.parameters(), *model.buffers())]
    odd = torch.arange(1, 2 * CHUNK, 2, device=tensors[0].device)
    sums = [
        (odd[: len(part)] * part).sum()
        for tensor in tensors
        for part in torch.split(tensor.view(INTEGERS[tensor.element_size()]), CHUNK)
    ]
    return hash(tuple(torch.stack(sums).tolist()))


def require_equal(world: World, model: nn.Module) -> int:
    """Raise HaltError on all ranks if one has other parameters or buffers than most.

    Return the common fingerprint.
    """
    found = world.gather((fingerprint(model), world.name))
    usual = Counter(value for value, _ in found).most_common(1)[0][0]
    others = ", ".join(who for value, who in found if value != usual)
    if others:
        first = next(who for value, who in found if value == usual)
        message = f"parameters of {others} are not those of {first}: nothing was saved"
        raise HaltError("parameters", message)
    return usual
