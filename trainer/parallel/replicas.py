"""A whole replica on each rank, whose gradients are averaged at every step by DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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

    optimizers_differ = False

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        world: World,
        mark: Callable[[str], None],
        module: nn.Module,
    ) -> None:
        """`mark` is told what the time until now went to, as by Watch.mark.

        `module` computes in the place of the model: the same one, or compiled.
        """
        self.model, self.world = model, world
        self.way = (exchange.mode, exchange.compression, exchange.overlap, exchange.bucket_mib)
        self._shared = False  # Whether all ranks have the same buffers.
        self._powersgd = None
        if exchange.compression == "powersgd":
            # Its error feedback needs gradients that have settled a little, two steps at least.
            self._powersgd = PowerSGD(max(2, exchange.warm_up_steps))
        self._replica = replicate(module, exchange, world, mark, self._powersgd)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute scores; the backward pass that follows exchanges gradients."""
        self._shared = False
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
    def share_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the mean of their buffers, and the first rank's of those that count."""
        if self._shared:
            return
        for buffer in buffers_of(modules):
            if buffer.is_floating_point():
                distributed.all_reduce(buffer.div_(self.world.size))
            else:
                distributed.broadcast(buffer, 0)
        self._shared = True

    @contextmanager
    def settled(self, modules: Sequence[nn.Module]) -> Iterator[dict[str, Any]]:
        """Bring the ranks together for a checkpoint, and let them go on as they were."""
        own = self.own(modules)
        self.settle(modules)
        try:
            yield own
        finally:
            self.load_own(own, modules)

    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return what this rank alone has, untouched by what follows."""
        own: dict[str, Any] = {}
        if not self._shared and (buffers := buffers_of(modules)):
            own["buffers"] = [buffer.clone() for buffer in buffers]
        if self._powersgd:
            own["powersgd"] = self._powersgd.state_dict()
        return own

    def settle(self, modules: Sequence[nn.Module]) -> None:
        """Bring the ranks together."""
        self.share_buffers(modules)

    @torch.no_grad()
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Put back what `own` gave."""
        if "buffers" in own:
            for buffer, value in zip(buffers_of(modules), own["buffers"], strict=True):
                buffer.copy_(value)
            self._shared = False
        if self._powersgd and "powersgd" in own:
            self._powersgd.load_state_dict(own["powersgd"], self.world.device)

    def require_equal(self) -> int:
        """Compare all bits of parameters and buffers."""
        return require_equal(self.world, self.model)

    def begin_local(self, step: int, samples: int) -> bool:  # noqa: ARG002
        """No step is local."""
        return False

    def end_local(self, step: int, bad_loss: str, *, last: bool) -> str | None:  # noqa: ARG002
        """Nothing has begun."""
        return None

    def merge(self, *, last: bool) -> None:
        """Nothing differs."""


class PowerSGD(PowerSGDState):
    """PowerSGD's memory: per bucket what it has left out so far, and the matrices it begins with.

    What is left out is each rank's own. The mean of the ranks' gradients is the same when each rank
    adds the mean of what all have left out.
    """

    def __init__(self, begin: int) -> None:
        super().__init__(None, POWERSGD_RANK, start_powerSGD_iter=begin)
        self.memory = {
            "errors": self.error_dict,
            "p": self.p_memory_dict,
            "q": self.q_memory_dict,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step needs."""
        return {"steps": self.iter, **{name: dict(each) for name, each in self.memory.items()}}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Put back what `state_dict` gave."""
        self.iter = state["steps"]
        for name, each in self.memory.items():
            each.clear()
            each.update((key, value.to(device)) for key, value in state[name].items())

    def fit(self, bucket: GradBucket) -> None:
        """Forget what belongs to a bucket of another size: the job has changed them."""
        error = self.error_dict.get(bucket.index())
        if error is not None and error.numel() != bucket.buffer().numel():
            for each in self.memory.values():
                each.pop(bucket.index(), None)


def buffers_of(modules: Sequence[nn.Module]) -> list[Tensor]:
    """The buffers of some modules, in their order."""
    return [buffer for module in modules for buffer in module.buffers()]


def replicate(
    model: nn.Module,
    exchange: Exchange,
    world: World,
    mark: Callable[[str], None],
    state: PowerSGD | None,
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
    hook = HOOKS[exchange.compression]

    def send(state: Any, bucket: GradBucket) -> Future[Tensor]:
        if bucket.is_last():
            # What is left of the backward pass is waiting.
            mark("compute")
        if state:
            state.fit(bucket)
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
