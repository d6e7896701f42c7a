"""A whole replica on each rank; DDP averages the gradients at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.job import Exchange
from trainer.parallel.equality import require_equal
from trainer.parallel.ranks import Ranks
from trainer.parallel.world import World

HOOKS: Any = {
    "alone": debugging_hooks.noop_hook,
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook,
}
POWERSGD_RANK = 2
"""Rank of the matrices that approximate a gradient: enough for a ResNet-18 on CIFAR-10 (Vogels et
al. 2019, arXiv 1905.13727, table 3)."""


class Replicas(Ranks):
    """A replica on each rank: DDP, with the job's buckets and compression."""

    optimizers_differ = False
    holds_all = True

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        world: World,
        mark: Callable[[str], None],
        module: nn.Module,
        *,
        alike: bool = True,
    ) -> None:
        """`mark` counts the time until now as one kind of work, as Watch.mark does.

        `module` replaces the model in computations: the same one, or compiled. `alike` gives all
        ranks the weights of rank 0.
        """
        self.model, self.world = model, world
        self.data_rank, self.data_size = world.rank, world.size
        self.way = (exchange.mode, exchange.compression, exchange.overlap, exchange.bucket_mib)
        self._shared = False  # Whether all ranks have the same buffers.
        self._powersgd = None
        if exchange.compression == "powersgd":
            # Its error feedback needs somewhat stable gradients: start after at least two steps.
            self._powersgd = PowerSGD(max(2, exchange.warm_up_steps))
        self._replica = replicate(module, exchange, world, mark, self._powersgd, alike=alike)

    def release(self) -> None:
        """Remove DDP's hooks from the model, so that another replica can wrap it.

        They may already be removed, if a peer was lost while the next replica was built.
        """
        self.__dict__.pop("_replica", None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute scores; the backward pass that follows exchanges gradients."""
        self._shared = False
        scores: Tensor = self._replica(inputs)
        return scores

    def unsynchronised(self) -> AbstractContextManager[None]:
        """Do not exchange gradients."""
        return self._replica.no_sync()

    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Clip the mean gradients or, in a local step, this rank's own."""
        nn.utils.clip_grad_norm_(parameters, norm)

    def parts(self) -> dict[str, Any]:
        """Return the model."""
        return {"model": self.model}

    @torch.no_grad()
    def share_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the mean of their buffers; integer buffers (counts) are rank 0's."""
        if self._shared:
            return
        for buffer in buffers_of(modules):
            if buffer.is_floating_point():
                mean = buffer / self.world.size
                self._wait(distributed.all_reduce(mean, async_op=True))
                buffer.copy_(mean)  # Only after the all-reduce, which may fail.
            else:
                self._wait(distributed.broadcast(buffer, 0, async_op=True))
        self._shared = True

    def _wait(self, work: Any) -> None:
        """Wait for a collective of the default group."""
        self.world.wait(work)

    @contextmanager
    def settled(self, modules: Sequence[nn.Module]) -> Iterator[dict[str, Any]]:
        """Give all ranks the same state for a checkpoint, then restore their own."""
        own = self.own(modules)
        self.settle(modules)
        try:
            yield own
        finally:
            self.load_own(own, modules)

    def prepare(self, scale: Callable[[], float]) -> Callable[[], None]:
        """As in `Ranks`: PowerSGD keeps errors of gradients."""
        if self._powersgd is None:
            return super().prepare(scale)
        self._powersgd.use_scale(scale())
        return self._powersgd.remember()

    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return a copy of this rank's own state."""
        own: dict[str, Any] = {}
        if not self._shared and (buffers := buffers_of(modules)):
            own["buffers"] = [buffer.clone() for buffer in buffers]
        if self._powersgd:
            own["powersgd"] = self._powersgd.state_dict()
        return own

    def settle(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the same state."""
        self.share_buffers(modules)

    @torch.no_grad()
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Restore what `own` returned."""
        if "buffers" in own:
            for buffer, value in zip(buffers_of(modules), own["buffers"], strict=True):
                buffer.copy_(value)
            self._shared = False
        if self._powersgd and "powersgd" in own:
            self._powersgd.load_state_dict(own["powersgd"], self.world.device)

    def require_equal(self, *, buffers: bool = True) -> int:
        """Compare all bits of parameters and `buffers`."""
        return require_equal(self.world, self.model, buffers=buffers)


class PowerSGD(PowerSGDState):
    """PowerSGD's state: for each bucket the compression error so far, and the initial matrices.

    The error differs between ranks. The mean gradient stays the same if each rank adds the mean of
    all errors instead of its own.
    """

    def __init__(self, begin: int) -> None:
        super().__init__(None, POWERSGD_RANK, start_powerSGD_iter=begin)
        self.scale = 1.0  # Of the loss, and so of the errors.
        self.memory = {
            "errors": self.error_dict,
            "p": self.p_memory_dict,
            "q": self.q_memory_dict,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next step needs."""
        memory = {name: dict(each) for name, each in self.memory.items()}
        return {"steps": self.iter, "scale": self.scale, **memory}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what `state_dict` returned."""
        self.iter, self.scale = state["steps"], state.get("scale", self.scale)
        for name, each in self.memory.items():
            each.clear()
            each.update((key, value.to(device)) for key, value in state[name].items())

    def remember(self) -> Callable[[], None]:
        """Return a function that restores the present state: errors keep non-finite gradients.

        The hook replaces the errors by others, and changes the matrices in place.
        """
        steps, random = self.iter, self.rng.get_state()
        errors, matrices = dict(self.error_dict), (self.p_memory_dict, self.q_memory_dict)
        copies = [{key: value.clone() for key, value in each.items()} for each in matrices]

        def restore() -> None:
            self.iter = steps
            self.rng.set_state(random)
            for known, old in zip((self.error_dict, *matrices), (errors, *copies), strict=True):
                known.clear()
                known.update((key, value.clone()) for key, value in old.items())

        return restore

    def use_scale(self, scale: float) -> None:
        """Convert the errors to gradients of another scale of the loss, to which they are added."""
        if scale != self.scale:
            for error in self.error_dict.values():
                error.mul_(scale / self.scale if self.scale else 0.0)
            self.scale = scale

    def fit(self, bucket: GradBucket) -> None:
        """Delete the state of a bucket whose size differs: the job has changed its buckets."""
        error = self.error_dict.get(bucket.index())
        if error is not None and error.numel() != bucket.buffer().numel():
            for each in self.memory.values():
                each.pop(bucket.index(), None)


def buffers_of(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return the buffers of some modules, in order."""
    return [buffer for module in modules for buffer in module.buffers()]


def replicate(
    model: nn.Module,
    exchange: Exchange,
    world: World,
    mark: Callable[[str], None],
    state: PowerSGD | None,
    *,
    alike: bool,
) -> DistributedDataParallel:
    """Wrap the model so that gradients are averaged over all ranks, with the job's options."""
    # Replicas.share_buffers averages BatchNorm's buffers when they are needed: figures over all
    # ranks are better than those of rank 0, and DDP's broadcast is one more collective per step.
    # Before torch 2.13 the option had another name.
    name = "forward_sync_buffers"
    known = name in signature(DistributedDataParallel).parameters
    replica = DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        **{name if known else "broadcast_buffers": False},  # type: ignore[arg-type]
        bucket_cap_mb=exchange.bucket_mib,
        gradient_as_bucket_view=True,
        static_graph=exchange.static_graph,
        init_sync=alike,
    )
    alone = world.size == 1 and exchange.compression == "none"
    hook = HOOKS["alone" if alone else exchange.compression]

    def send(state: Any, bucket: GradBucket) -> Future[Tensor]:
        if bucket.is_last():
            # From here on, the backward pass only waits for communication.
            mark("compute")
            world.pending.reach()
        if state:
            state.fit(bucket)
        future: Future[Tensor] = hook(state, bucket)
        if world.device.type == "cuda":
            return future
        future = world.guard(future)
        if state:
            # PowerSGD starts a second all-reduce in a thread of gloo when the first has ended. The
            # order of buckets would differ between ranks, so each bucket waits for the previous.
            future.wait()
        return future

    # DistributedDataParallel does not accept annotations that are strings.
    send.__annotations__.clear()
    replica.register_comm_hook(state, send)
    return replica
