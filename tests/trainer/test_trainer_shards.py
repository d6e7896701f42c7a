"""Each sample is used exactly once, at any world size."""

import pytest
import torch
from hypothesis import given, settings, strategies

from trainer.data import shards

TOTAL = 1437


def worked_on(position: int, end: int, world_size: int, accumulation: int, batch: int) -> list[int]:
    """All samples that all ranks take from `position` until `end` is passed, in no order."""
    order = shards.permutation(TOTAL, seed=5, epoch=1)
    seen: list[int] = []
    while position < end:
        step = order[position : position + batch * world_size * accumulation]
        for rank in range(world_size):
            even = [1 / world_size] * world_size
            for piece in shards.pieces(step, rank, even, accumulation):
                assert 0 < len(piece) <= batch
                seen += piece.tolist()
        position += len(step)
    return seen


@pytest.mark.parametrize(
    ("world_size", "accumulation", "batch"),
    [(1, 1, 64), (3, 1, 64), (1, 3, 64), (3, 2, 32), (4, 4, 7), (1000, 1, 1), (64, 2, 500)],
)
def test_an_epoch_has_every_sample_once(world_size: int, accumulation: int, batch: int) -> None:
    assert sorted(worked_on(0, TOTAL, world_size, accumulation, batch)) == list(range(TOTAL))


def test_a_changed_world_goes_on_where_the_other_stopped() -> None:
    before = worked_on(0, 5 * 192, 3, 1, 64)
    after = worked_on(len(before), TOTAL, 2, 2, 50)
    assert sorted(before + after) == list(range(TOTAL))


@pytest.mark.parametrize("left", [1, 2, 5, 6, 7, 93])
def test_the_rest_is_divided_evenly(left: int) -> None:
    sizes = [
        sum(len(piece) for piece in shards.pieces(torch.arange(left), rank, [1 / 3] * 3, 2))
        for rank in range(3)
    ]
    assert sum(sizes) == left
    assert max(sizes) - min(sizes) <= 1
    assert (min(sizes) > 0) == (left >= 3)


@settings(deadline=None)
@given(
    weights=strategies.lists(strategies.floats(0.01, 100), min_size=1, max_size=40),
    batch=strategies.integers(1, 5000),
    accumulation=strategies.integers(1, 4),
)
def test_uneven_shares_leave_nothing_out(
    weights: list[float], batch: int, accumulation: int
) -> None:
    shares = [weight / sum(weights) for weight in weights]
    samples = torch.arange(batch)
    found = [shards.pieces(samples, rank, shares, accumulation) for rank in range(len(shares))]
    assert torch.equal(torch.cat([piece for own in found for piece in own]), samples)
    for own, share in zip(found, shares, strict=True):
        assert abs(sum(map(len, own)) - share * batch) <= 1


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    order = shards.permutation(TOTAL, seed=5, epoch=1)
    torch.manual_seed(99)
    assert torch.equal(order, shards.permutation(TOTAL, seed=5, epoch=1))
    assert not torch.equal(order, shards.permutation(TOTAL, seed=5, epoch=2))
    assert not torch.equal(order, shards.permutation(TOTAL, seed=6, epoch=1))
    # Sums of seed and epoch would make these the same.
    assert not torch.equal(order, shards.permutation(TOTAL, seed=6, epoch=0))


@pytest.mark.parametrize(("samples", "world_size"), [(360, 3), (361, 3), (1, 3), (10000, 7)])
def test_evaluation_sees_every_sample_once(samples: int, world_size: int) -> None:
    ranks = [shards.evaluation_batches(samples, rank, world_size, 4) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = torch.cat([batch for batches in ranks for batch, counts in batches if counts])
    assert sorted(seen.tolist()) == list(range(samples))
