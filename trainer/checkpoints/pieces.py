"""The state of a divided model: each rank saves pieces of tensors; any world size can join them.

    {"tensors": {"model.norm.weight": {"offset": [0], "shape": [64], "values": …}, …},
     "plain": {"optimizer.param_groups.norm.weight.lr": 0.001, …}}

`offset` is the place of `values` in the whole tensor of that `shape`. Names are those of the whole
model, however it is divided, so that a training can continue with another division.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.checkpoints.format import State

WAY = "sharded"
Box = tuple[tuple[int, int], ...]
"""The first index and the one after the last, in each dimension of a whole tensor."""


def is_divided(way: tuple[Any, ...]) -> bool:
    """Whether the parts of a checkpoint are pieces of one model; `way` as `Ranks.way`."""
    return way[:1] == (WAY,)


def cells(way: tuple[Any, ...]) -> int:
    """Return the number of ranks of one replica: the product of all sizes but data's, the first."""
    return prod(way[2:])


def place_of(values: Tensor) -> tuple[Tensor, Box]:
    """Return this rank's piece of a tensor, and its place in the whole tensor."""
    if not isinstance(values, DTensor):
        return values, tuple((0, size) for size in values.shape)
    shape, offset = compute_local_shape_and_global_offset(
        values.shape, values.device_mesh, values.placements
    )
    box = tuple((start, start + size) for start, size in zip(offset, shape, strict=True))
    return values.to_local(), box


def pieces_of(state: Mapping[str, Any]) -> State:
    """Return this rank's pieces of a state by names, in a form that can be saved."""
    tensors, plain = {}, {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            values, box = place_of(value)
            offset = [start for start, _ in box]
            tensors[name] = {"offset": offset, "shape": list(value.shape), "values": values}
        else:
            plain[name] = value
    return {"tensors": tensors, "plain": plain}


def place_pieces(pieces: State, whole: dict[str, Tensor]) -> None:
    """Copy a rank's pieces into whole tensors by names; create missing ones."""
    for name, piece in pieces["tensors"].items():
        values, shape = piece["values"], piece["shape"]
        target = whole.setdefault(name, torch.empty(shape, dtype=values.dtype))
        sizes = zip(piece["offset"], values.shape, strict=True)
        target[tuple(slice(start, start + size) for start, size in sizes)] = values


@dataclass
class Joined:
    """A state by names, which pieces of a checkpoint fill."""

    state: dict[str, Any]
    _filled: dict[str, set[Box]] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, pieces: State) -> None:
        """Copy the overlap with this rank's own pieces; raises ValueError if shapes differ."""
        for name, own in self.state.items():
            if name in pieces["plain"]:
                self.state[name] = pieces["plain"][name]
            elif name in pieces["tensors"] and isinstance(own, Tensor):
                self._copy(name, own, pieces["tensors"][name])

    def _copy(self, name: str, own: Tensor, piece: Mapping[str, Any]) -> None:
        if list(own.shape) != piece["shape"]:
            shapes = f"{piece['shape']}, not {list(own.shape)}"
            raise ValueError(f"{name} has the shape {shapes}")
        target, mine = place_of(own)
        values, sizes = piece["values"], zip(piece["offset"], piece["values"].shape, strict=True)
        theirs = tuple((start, start + size) for start, size in sizes)
        common = overlap(mine, theirs)
        if common is not None:
            target[inside(mine, common)].copy_(values[inside(theirs, common)])
            self._filled.setdefault(name, set()).add(common)

    @property
    def lacking(self) -> list[str]:
        """The names of tensors that the pieces do not fill."""
        found = []
        for name, own in self.state.items():
            if isinstance(own, Tensor):
                values, _ = place_of(own)
                boxes = self._filled.get(name, set())
                if sum(map(volume, boxes)) < values.numel():
                    found.append(name)
        return found


def overlap(one: Box, other: Box) -> Box | None:
    """Return the common part of two boxes; None if there is none."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < end for start, end in found) else None


def inside(box: Box, part: Box) -> tuple[slice, ...]:
    """Return the indices of a part of a box, relative to the box."""
    pairs = zip(box, part, strict=True)
    return tuple(slice(begin - start, end - start) for (start, _), (begin, end) in pairs)


def volume(box: Box) -> int:
    """The number of values in a box."""
    return prod(end - start for start, end in box)
