"""The grid of ranks that divide a model: data x pipeline x shard x tensor.

Ranks are numbered host by host, so the last dimension changes fastest: ranks of one tensor group
are neighbours, on one host if it has enough of them; replicas are the farthest apart. The most
frequent communication then uses the fastest links: tensor groups communicate several times in each
block, shard groups once a block, pipelines only between two stages, and replicas once a step.
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
    """The sizes of the grid's dimensions, and a rank's coordinate in each of them, by `NAMES`."""

    sizes: Mapping[str, int]
    place: Mapping[str, int]

    @classmethod
    def of(cls, wish: Parallel, size: int, rank: int) -> Grid:
        """Arrange `size` ranks by a job's `parallel:` section.

        Raises HaltError if the sizes do not fit the number of ranks.
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
        """The index of this rank's part of each batch, from 0 to `data_size` - 1."""
        return self.place["data"] * self.sizes["shard"] + self.place["shard"]

    @property
    def data_size(self) -> int:
        """The number of parts into which each batch is divided."""
        return self.sizes["data"] * self.sizes["shard"]

    @property
    def counts(self) -> bool:
        """Whether this rank reports its samples; only one of the ranks with the same ones does."""
        return self.place["pipeline"] == self.place["tensor"] == 0


def connect(grid: Grid, world: World, timeout: timedelta) -> DeviceMesh:
    """Form the groups of ranks that differ in one dimension; all ranks must call it.

    Their collectives time out after `timeout`, unlike those of torch's init_device_mesh.
    """
    ranks = torch.arange(world.size).view(*grid.sizes.values())
    groups = []
    for dimension in range(len(NAMES)):
        rows = ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension]).tolist()
        form = distributed.new_subgroups_by_enumeration
        own, _ = form(rows, timeout=timeout)  # type: ignore[no-untyped-call]
        groups.append(own)
    return DeviceMesh.from_group(groups, world.device.type, ranks, mesh_dim_names=NAMES)
