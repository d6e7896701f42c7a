"""The samples of each rank: a function of seed, epoch and position alone.

An epoch is a permutation of all training samples. Each optimizer step takes the next slice of it
and divides the slice over all ranks and their micro-steps. The slices of an epoch have at most the
size of a global batch, and differ by at most one sample: a last step with only the remaining
samples, perhaps one, would have the same weight as other steps. No sample is dropped or
repeated at any world size, and training can resume from any position with another world
size.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor


def generator(seed: int, *words: int) -> torch.Generator:
    """A generator that depends on the seed and on the words in their order."""
    state = seed
    for word in words:
        # Multiplier of a linear congruential generator modulo 2^64 (Knuth, MMIX).
        state = (state * 6364136223846793005 + word + 1) % 2**63
    return torch.Generator().manual_seed(state)


def seed_of(seed: int, *words: int) -> int:
    """The seed of `generator`'s result."""
    return generator(seed, *words).initial_seed()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Temporarily seed torch's CPU generator, which torchvision uses.

    The generators of GPUs, which layers such as dropout use, do not change.
    """
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split off a share of each class, chosen by the seed: indices int64 of the rest, and of it.

    A class with one sample remains in the rest.
    """
    order = torch.randperm(len(labels), generator=generator(seed))
    by_class = order[labels[order].argsort(stable=True)]
    alone = labels.bincount()[labels[by_class]] == 1
    number = torch.arange(len(labels), dtype=torch.float64)
    chosen = ((number * share).floor() > ((number - 1) * share).floor()) & ~alone
    return by_class[~chosen], by_class[chosen]


def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: int64 [samples]."""
    return torch.randperm(samples, generator=generator(seed, epoch))


def next_size(left: int, most: int) -> int:
    """The number of samples of the next step, at most `most`; `left` remain in the epoch."""
    return math.ceil(left / max(1, math.ceil(left / most)))


def next_batch(left: Tensor, most: int) -> Tensor:
    """The samples of the next step, from all that are left of an epoch, int64 [n]."""
    return left[: next_size(len(left), most)]


def batches(left: Tensor, most: int) -> Iterator[Tensor]:
    """The samples of all remaining steps of an epoch, as by `next_batch`."""
    while len(left):
        batch = next_batch(left, most)
        yield batch
        left = left[len(batch) :]


def pieces(batch: Tensor, rank: int, shares: Sequence[float], accumulation: int) -> list[Tensor]:
    """A rank's share of a global batch, int64 [n], in at most `accumulation` pieces, none empty."""
    bounds = [0, *(round(share * len(batch)) for share in accumulate(shares))]
    own = batch[bounds[rank] : bounds[rank + 1]]
    return [piece for piece in torch.tensor_split(own, accumulation) if len(piece)]


def evaluation_batches(samples: int, rank: int, ranks: int, size: int) -> list[tuple[Tensor, bool]]:
    """This rank's test samples in batches int64 [n] of at most `size`, and whether they count.

    The ranks' batches that count are disjoint and cover all samples. All ranks have the same number
    of batches, as they may have to compute together: missing ones repeat the first sample.
    """
    own = torch.split(torch.arange(samples)[rank::ranks], size)
    batches = [(batch, True) for batch in own if len(batch)]
    most = math.ceil(math.ceil(samples / ranks) / size)
    return batches + [(torch.zeros(1, dtype=torch.int64), False)] * (most - len(batches))
