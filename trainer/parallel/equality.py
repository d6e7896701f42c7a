"""Checks that the ranks have bit-identical models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.parallel.halt import HaltError
from trainer.parallel.world import World, is_lost_peer

CHUNK = 2**16  # Values per partial sum of a fingerprint; small enough for a CPU's cache.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def fingerprint(values: Iterable[Tensor]) -> int:
    """A hash of the bits of some tensors, the same on every device.

    The bits of each value in a chunk are multiplied by an odd number of its position and summed
    modulo 2^64: integer sums do not depend on the order, and one changed value is always detected.
    """
    tensors = [tensor.reshape(-1) for tensor in values]
    odd = torch.arange(1, 2 * CHUNK, 2, device=tensors[0].device)
    sums = [
        (odd[: len(part)] * part).sum()
        for tensor in tensors
        for part in torch.split(tensor.view(INTEGERS[tensor.element_size()]), CHUNK)
    ]
    return hash(tuple(torch.stack(sums).tolist()))


def require_equal(world: World, model: nn.Module, *, buffers: bool = True) -> int:
    """Raise HaltError on all ranks if parameters or `buffers` of one differ from most ranks'.

    The error names the hosts of differing ranks if more than half of all ranks agree. Return the
    common fingerprint.
    """
    own = model.buffers() if buffers else ()
    print_of_rank = fingerprint((*model.parameters(), *own))
    found = world.gather((print_of_rank, world.name, world.host))
    with known_to_all(world):
        return require_one(found)


def require_equal_replicas(world: World, values: Sequence[Tensor], cell: int) -> int:
    """Raise HaltError as `require_equal` does, if replicas of the same part differ.

    `values` are this rank's parts, `cell` identifies them. Return a fingerprint of all parts.
    """
    found = world.gather((cell, (fingerprint(values), world.name, world.host)))
    with known_to_all(world):
        prints = [
            require_one([about for other, about in found if other == part])
            for part in sorted({part for part, _ in found})
        ]
    return hash(tuple(prints))


@contextmanager
def known_to_all(world: World) -> Iterator[None]:
    """Delay a HaltError of all ranks until each of them has raised it.

    A rank that leaves earlier closes connections from which others still read the reason: they
    would regard it as lost, and a rank whose own parameters differ would continue.
    """
    try:
        yield
    except HaltError:
        try:
            world.gather(None)
        except RuntimeError as error:
            if not is_lost_peer(error):
                raise
        raise


def require_one(found: Sequence[tuple[int, str, str]]) -> int:
    """Return the common fingerprint; `found` has each rank's fingerprint, name and host.

    Raises HaltError, as `require_equal` does.
    """
    usual, count = Counter(value for value, _, _ in found).most_common(1)[0]
    others = ", ".join(who for value, who, _ in found if value != usual)
    if others:
        first = next(who for value, who, _ in found if value == usual)
        message = f"parameters of {others} are not those of {first}: nothing was saved"
        hosts = frozenset(host for value, _, host in found if value != usual)
        known = count > len(found) / 2
        raise HaltError("parameters", message, hosts if known else frozenset())
    return usual
