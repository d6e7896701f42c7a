"""Each sample exactly once, whoever works on it."""

import pytest
import torch

from trainer import shards

TOTAL = 1437


def worked_on(position: int, end: int, world_size: int, accumulation: int, batch: int) -> list[int]:
    """All samples that all ranks take from `position` until `end` is passed, in no order."""
    order = shards.permutation(TOTAL, seed=5, epoch=1)
    seen: list[int] = []
    while position < end:
        step = order[position : position + batch * world_size * accumulation]
        for rank in range(world_size):
            for piece in shards.pieces(step, rank, world_size, accumulation):
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
        sum(len(piece) for piece in shards.pieces(torch.arange(left), rank, 3, 2))
        for rank in range(3)
    ]
    assert sum(sizes) == left
    assert max(sizes) - min(sizes) <= 2
    assert sizes[0] == max(sizes)
    assert (min(sizes) > 0) == (left >= 3)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    order = shards.permutation(TOTAL, seed=5, epoch=1)
    torch.manual_seed(99)
    assert torch.equal(order, shards.permutation(TOTAL, seed=5, epoch=1))
    assert not torch.equal(order, shards.permutation(TOTAL, seed=5, epoch=2))
    assert not torch.equal(order, shards.permutation(TOTAL, seed=6, epoch=1))
    # Sums of seed and epoch would make these the same.
    assert not torch.equal(order, shards.permutation(TOTAL, seed=6, epoch=0))


@pytest.mark.parametrize(("samples", "world_size"), [(360, 3), (361, 3), (2, 3), (10000, 7)])
def test_evaluation_sees_every_sample_once(samples: int, world_size: int) -> None:
    seen = torch.cat(
        [shards.evaluation_shard(samples, rank, world_size) for rank in range(world_size)]
    )
    assert sorted(seen.tolist()) == list(range(samples))
