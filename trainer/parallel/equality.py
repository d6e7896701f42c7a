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
def fingerprint(model: nn.Module, *, buffers: bool = True) -> int:
    """A hash of the bits of all parameters and `buffers`, the same on every device.

    The bits of each value in a chunk are multiplied by an odd number of its position and summed
    modulo 2^64: integer sums do not depend on the order, and one changed value is always detected.
    """
    own = model.buffers() if buffers else ()
    tensors = [tensor.reshape(-1) for tensor in (*model.parameters(), *own)]
    odd = torch.arange(1, 2 * CHUNK, 2, device=tensors[0].device)
    sums = [
        (odd[: len(part)] * part).sum()
        for tensor in tensors
        for part in torch.split(tensor.view(INTEGERS[tensor.element_size()]), CHUNK)
    ]
    return hash(tuple(torch.stack(sums).tolist()))


def require_equal(world: World, model: nn.Module, *, buffers: bool = True) -> int:
    """Raise HaltError on all ranks if one has other parameters or `buffers` than most.

    It names the hosts of these ranks if more than half of all ranks agree. Return the common
    fingerprint.
    """
    found = world.gather((fingerprint(model, buffers=buffers), world.name, world.host))
    usual, count = Counter(value for value, _, _ in found).most_common(1)[0]
    others = ", ".join(who for value, who, _ in found if value != usual)
    if others:
        first = next(who for value, who, _ in found if value == usual)
        message = f"parameters of {others} are not those of {first}: nothing was saved"
        hosts = frozenset(host for value, _, host in found if value != usual)
        known = count > len(found) / 2
        raise HaltError("parameters", message, hosts if known else frozenset())
    return usual
