"""Each rank has a part of the model: FSDP2, with replicas of the parts as in HSDP.

Before a block computes, the ranks of a shard group gather its parameters; after its backward pass
they sum the gradients and each keeps its part of them (Zhao et al. 2023, arXiv 2304.11277). The
optimizer updates each rank's part. Replicas average the parts of the gradients once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.contract.job import TrainJob
from trainer.parallel.equality import require_equal_replicas
from trainer.parallel.grid import Grid, connect
from trainer.parallel.ranks import Ranks
from trainer.parallel.replicas import buffers_of
from trainer.parallel.world import World

LEAST = 100_000
"""Parameters of a layer that is gathered by itself; smaller ones are gathered with the layers
around them, as each all-gather has a latency."""
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Division:
    """Functions that divide a model before its parts are sharded."""

    tensor: Callable[[nn.Module, DeviceMesh], None]
    """Divides its layers among the ranks of a tensor group."""
    stage: Callable[[nn.Module, int, int], None]
    """Keeps one stage of the layers; takes its number and the number of stages."""


class Sharded(Ranks):
    """A part of the model on each rank."""

    optimizers_differ = False
    holds_all = False

    def __init__(
        self,
        model: nn.Module,
        job: TrainJob,
        world: World,
        precision: torch.dtype,
        division: Division | None,
    ) -> None:
        """Divide a model, which may be on torch's meta device: then nothing is allocated for it."""
        self.model, self.world = model, world
        self.grid = Grid.of(job.parallel, world.size, world.rank)
        self.data_rank, self.data_size = self.grid.data_rank, self.grid.data_size
        self.counts = self.measures = self.grid.counts
        self.way = ("sharded", *self.grid.sizes.values())
        self.mesh = connect(self.grid, world, timedelta(seconds=job.exchange.timeout))
        self._shared = False  # Whether all ranks have the same buffers.
        if division and self.grid.sizes["tensor"] > 1:
            division.tensor(model, self.mesh["tensor"])
        if division and self.grid.sizes["pipeline"] > 1:
            division.stage(model, self.grid.place["pipeline"], self.grid.sizes["pipeline"])
        shard(model, self.mesh["data", "shard"], precision)
        self._root = cast("FSDPModule", model)

    def release(self) -> None:
        """Do nothing: a divided model is rebuilt for another group."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute scores; the backward pass that follows exchanges gradients."""
        self._shared = False
        scores: Tensor = self.model(inputs)
        return scores

    @contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """Do not exchange gradients between replicas; each rank still keeps its part of them."""
        self._exchange(last=False)
        try:
            yield
        finally:
            self._exchange(last=True)

    def _exchange(self, *, last: bool) -> None:
        self._root.set_requires_all_reduce(last)
        self._root.set_is_last_backward(last)

    @torch.no_grad()
    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Clip by the norm over the parts of all ranks."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        factor = norm / (self.norm_of(gradients) + 1e-6)  # As in torch's clip_grad_norm_.
        for each in gradients:
            local(each).mul_(factor.clamp(max=1.0))

    def norm_of(self, gradients: Sequence[Tensor]) -> Tensor:
        """The L2 norm of the gradients of one whole replica, a scalar."""
        squares = dict[tuple[str, ...], Tensor]()  # By the dimensions that divide a parameter.
        for each in gradients:
            square = torch.linalg.vector_norm(local(each), dtype=torch.float32) ** 2
            over = dimensions(each)
            squares[over] = squares.get(over, torch.zeros_like(square)) + square
        for over, square in sorted(squares.items()):
            for dimension in over:
                self.wait_in(dimension, distributed.all_reduce, square)
        total = sum(squares.values(), torch.zeros((), device=self.world.device))
        self.wait_in("pipeline", distributed.all_reduce, total)
        return total.sqrt()

    def wait_in(self, dimension: str, act: Callable[..., Any], *arguments: Any) -> None:
        """Run a collective of the ranks that differ in one dimension."""
        group = self.mesh[dimension].get_group()
        self.world.wait(act(*arguments, group=group, async_op=True))

    def parts(self) -> dict[str, Any]:
        """Return nothing: each rank saves its own part of the model and of the optimizer."""
        return {}

    @torch.no_grad()
    def share_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the mean of their buffers; integer buffers (counts) are rank 0's."""
        if self._shared:
            return
        for buffer in buffers_of(modules):
            if buffer.is_floating_point():
                mean = buffer / self.world.size
                self.world.wait(distributed.all_reduce(mean, async_op=True))
                buffer.copy_(mean)
            else:
                self.world.wait(distributed.broadcast(buffer, 0, async_op=True))
        self._shared = True

    @contextmanager
    def settled(self, modules: Sequence[nn.Module]) -> Iterator[dict[str, Any]]:
        """Give all ranks the same buffers for a checkpoint, then restore their own."""
        own = self.own(modules)
        self.share_buffers(modules)
        try:
            yield own
        finally:
            self.load_own(own, modules)

    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return this rank's buffers; its parts of the model are saved with the optimizer's."""
        if self._shared or not (buffers := buffers_of(modules)):
            return {}
        return {"buffers": [buffer.clone() for buffer in buffers]}

    @torch.no_grad()
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Restore what `own` returned."""
        if "buffers" in own:
            for buffer, value in zip(buffers_of(modules), own["buffers"], strict=True):
                buffer.copy_(value)
            self._shared = False

    def require_equal(self, *, buffers: bool = True) -> int:  # noqa: ARG002
        """Compare all bits of the parts of different replicas."""
        cell = self.world.rank % self.grid.cell
        return require_equal_replicas(self.world, local_values(self.model), cell)


def shard(model: nn.Module, mesh: DeviceMesh, precision: torch.dtype) -> None:
    """Divide the parameters of each block, and of the rest, among the ranks of a mesh.

    `mesh` has two dimensions, of replicas and of parts. Computations use the precision; sums of
    gradients and the optimizer use float32.
    """
    policy = MixedPrecisionPolicy()
    if precision != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    # FSDP does not accept the strides of channels_last.
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers that are gathered by themselves: the large members of lists of layers."""
    found = list[nn.Module]()
    for child in model.children():
        member = isinstance(model, CONTAINERS) and not isinstance(child, CONTAINERS)
        if member and sum(each.numel() for each in child.parameters()) >= LEAST:
            found.append(child)
        else:
            found += blocks_of(child)
    return found


def local(values: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory."""
    return values.to_local() if isinstance(values, DTensor) else values


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values of this rank's parts are finite; waits for the device once."""
    floats = (each for each in map(local, tensors) if each.is_floating_point())
    sums = [each.sum(dtype=torch.float32) for each in floats]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def dimensions(values: Tensor) -> tuple[str, ...]:
    """Return the dimensions of the grid among whose ranks a tensor is divided."""
    if not isinstance(values, DTensor):
        return ()
    names = values.device_mesh.mesh_dim_names or ()
    places = zip(names, values.placements, strict=True)
    return tuple(name for name, place in places if not place.is_replicate())


def local_values(model: nn.Module) -> list[Tensor]:
    """Return this rank's parts of all parameters."""
    return [local(each.detach()) for each in model.parameters()]
