"""The grid of ranks that divide a model: data x pipeline x shard x tensor.

Ranks are numbered host by host, so the last dimension changes fastest: ranks of one tensor group
are neighbours, on one host as far as it has enough of them; replicas are the farthest apart. What
travels most often then uses the fastest links: tensor exchanges several times in each block, shard
once a block, a pipeline only between two stages, and data once a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import prod

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from trainer.contract.job import Parallel
from trainer.parallel.halt import HaltError
from trainer.parallel.world import World

NAMES = ("data", "pipeline", "shard", "tensor")


@dataclass(frozen=True)
class Grid:
    """The sizes of the grid's dimensions, and a rank's place in each of them, by `NAMES`."""

    sizes: Mapping[str, int]
    place: Mapping[str, int]

    @classmethod
    def of(cls, wish: Parallel, size: int, rank: int) -> Grid:
        """Arrange `size` ranks as a job wishes.

        Raises HaltError: they cannot be arranged so.
        """
        cell = wish.cell
        data = wish.data or size // cell
        if data * cell != size:
            what = f"{size} ranks are not a multiple of the {cell} that one replica of the model"
            if wish.data:
                what = f"{size} ranks are not the {data} x {cell} that the replicas of the model"
            raise HaltError("input", f"{what} takes by `parallel:`; change its numbers, or hosts")
        sizes = (data, wish.pipeline or 1, wish.shard or 1, wish.tensor or 1)
        place, rest = list[int](), rank
        for number in reversed(sizes):
            place.insert(0, rest % number)
            rest //= number
        return cls(dict(zip(NAMES, sizes, strict=True)), dict(zip(NAMES, place, strict=True)))

    @property
    def cell(self) -> int:
        """The number of ranks that have one replica."""
        return prod(size for name, size in self.sizes.items() if name != "data")

    @property
    def data_rank(self) -> int:
        """The number of this rank's samples among `data_size` parts of each batch."""
        return self.place["data"] * self.sizes["shard"] + self.place["shard"]

    @property
    def data_size(self) -> int:
        """The number of parts into which each batch is divided."""
        return self.sizes["data"] * self.sizes["shard"]

    @property
    def counts(self) -> bool:
        """Whether this rank is the one of those with the same samples that reports them."""
        return self.place["pipeline"] == self.place["tensor"] == 0


def connect(grid: Grid, world: World, timeout: timedelta) -> DeviceMesh:
    """Form the groups of ranks that differ in one dimension; all ranks must call it.

    An exchange in them fails after `timeout`, unlike in those that torch's init_device_mesh forms.
    """
    ranks = torch.arange(world.size).view(*grid.sizes.values())
    groups = []
    for dimension in range(len(NAMES)):
        rows = ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension]).tolist()
        form = distributed.new_subgroups_by_enumeration
        own, _ = form(rows, timeout=timeout)  # type: ignore[no-untyped-call]
        groups.append(own)
    return DeviceMesh.from_group(groups, world.device.type, ranks, mesh_dim_names=NAMES)
