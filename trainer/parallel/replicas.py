"""A whole replica on each rank, whose gradients are averaged at every step by DDP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.job import Exchange
from trainer.parallel.equality import require_equal
from trainer.parallel.ranks import Ranks
from trainer.parallel.world import World

HOOKS: Any = {
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook,
}
POWERSGD_RANK = 2
"""Of the matrices that stand for a gradient: enough for a ResNet-18 on CIFAR-10 (Vogels et al.
2019, arXiv 1905.13727, table 3)."""


class Replicas(Ranks):
    """A replica on each rank: DDP, with the buckets and the compression that the job says."""

    def __init__(
        self, model: nn.Module, exchange: Exchange, world: World, mark: Callable[[str], None]
    ) -> None:
        """`mark` is told what the time until now went to, as by Watch.mark."""
        self.model, self.world = model, world
        self._replica = replicate(model, exchange, world, mark)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute scores; the backward pass that follows exchanges gradients."""
        scores: Tensor = self._replica(inputs)
        return scores

    def unsynchronised(self) -> AbstractContextManager[None]:
        """Leave gradients on this rank."""
        return self._replica.no_sync()

    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Clip what this rank has: the mean of all ranks or, in a local step, its own gradients."""
        nn.utils.clip_grad_norm_(parameters, norm)

    def parts(self) -> dict[str, Any]:
        """Return the model."""
        return {"model": self.model}

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Give all ranks the mean of their buffers, and the first rank's of those that count."""
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                distributed.all_reduce(buffer.div_(self.world.size))
            else:
                distributed.broadcast(buffer, 0)

    def require_equal(self) -> None:
        """Compare all bits of parameters and buffers."""
        require_equal(self.world, self.model)

    def begin_local(self, step: int, samples: int) -> bool:  # noqa: ARG002
        """No step is local."""
        return False

    def end_local(self, step: int, bad_loss: str, *, last: bool) -> str | None:  # noqa: ARG002
        """Nothing has begun."""
        return None

    def merge(self, *, last: bool) -> None:
        """Nothing differs."""


def replicate(
    model: nn.Module, exchange: Exchange, world: World, mark: Callable[[str], None]
) -> DistributedDataParallel:
    """Wrap the model so that gradients are averaged over all ranks, as the job says."""
    # BatchNorm's figures are brought together where they are needed: Replicas.share_buffers. Before
    # torch 2.13 the option had another name.
    name = "forward_sync_buffers"
    known = name in signature(DistributedDataParallel).parameters
    replica = DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        **{name if known else "broadcast_buffers": False},  # type: ignore[arg-type]
        bucket_cap_mb=exchange.bucket_mib,
        gradient_as_bucket_view=True,
        static_graph=exchange.static_graph,
    )
    hook, state = HOOKS[exchange.compression], None
    if exchange.compression == "powersgd":
        # Its error feedback needs gradients that have settled a little, two steps at least.
        begin = max(2, exchange.warm_up_steps)
        state = PowerSGDState(None, POWERSGD_RANK, start_powerSGD_iter=begin)

    def send(state: Any, bucket: GradBucket) -> Future[Tensor]:
        if bucket.is_last():
            # What is left of the backward pass is waiting.
            mark("compute")
        future: Future[Tensor] = hook(state, bucket)
        if state and world.device.type == "cpu":
            # PowerSGD begins a second exchange when the first has ended: in gloo's threads, in
            # another order on each rank, unless one bucket waits for the other.
            future.wait()
        return future

    # DistributedDataParallel does not understand annotations that are texts.
    send.__annotations__.clear()
    replica.register_comm_hook(state, send)
    return replica
