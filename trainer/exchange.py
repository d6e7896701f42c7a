"""How the ranks' work is brought together: gradients at every step, or weights now and then.

What suits a network is arithmetic on bytes and link speed: `kit plan` does it.
"""

from __future__ import annotations

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
from trainer.watch import Watch
from trainer.world import World

HOOKS: Any = {
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook,
}
POWERSGD_RANK = 2
"""Of the matrices that stand for a gradient: enough for a ResNet-18 on CIFAR-10 (Vogels et al.
2019, arXiv 1905.13727, table 3)."""
OUTER = {"local_sgd": (1.0, 0.0), "diloco": (0.7, 0.5)}
"""Rate and Nesterov momentum of the step on the mean change of all ranks. (1, 0) is the mean of
their weights: post-local SGD (Lin et al. 2018, arXiv 1808.07217). DiLoCo (Douillard et al. 2023,
arXiv 2311.08105) takes 0.7 and 0.9, with AdamW inside; short runs of SGD diverged at 0.9."""
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def replicate(
    model: nn.Module, exchange: Exchange, world: World, watch: Watch
) -> DistributedDataParallel:
    """Wrap the model so that gradients are averaged over all ranks, as the job says."""
    # BatchNorm's figures are brought together where they are needed: World.share_buffers. Before
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
            watch.mark("compute")
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


class LocalSteps:
    """Lets each rank train on its own, and brings the weights together now and then.

    `anchors` are what all ranks agreed on last; `outer` moves them by the mean of what the ranks
    have changed in a round of steps, weighted by their samples. With `overlap` the changes travel
    during the next round and the ranks do not wait: each goes on from the anchors and its own
    changes, which the others get to know a round later (CO2: Sun et al. 2024, arXiv 2401.16265).
    """

    def __init__(self, model: nn.Module, exchange: Exchange) -> None:
        self.exchange = exchange
        self.weights = list(model.parameters())
        self.anchors = [weight.detach().clone() for weight in self.weights]
        self.starts = [each.clone() for each in self.anchors] if exchange.overlap else self.anchors
        rate, momentum = OUTER[exchange.mode]
        self.outer = torch.optim.SGD(self.anchors, rate, momentum=momentum, nesterov=momentum > 0)
        self.travelling: list[tuple[Any, Tensor]] = []
        self.samples = 0  # Of this rank in this round.
        self.word = ""  # Of a loss in this round that was not finite.

    def is_local(self, step: int) -> bool:
        """Whether a step, counted from 1, is without an exchange of gradients."""
        return step > self.exchange.warm_up_steps

    def is_due(self, step: int) -> bool:
        """Whether a round ends with a local step, besides at the end of an epoch."""
        return (step - self.exchange.warm_up_steps) % self.exchange.every_steps == 0

    @torch.no_grad()
    def begin(self, samples: int) -> None:
        """Take note of a local step on so many samples before it is done."""
        if not self.samples:
            self.word = ""
            for known in (self.starts, *(() if self.travelling else (self.anchors,))):
                for old, weight in zip(known, self.weights, strict=True):
                    old.copy_(weight)
        self.samples += samples

    @torch.no_grad()
    def merge(self, world: World, *, last: bool) -> None:
        """End a round: all ranks must call it after the same step.

        They have the same weights afterwards if it is the `last` one, or without overlap.
        """
        own = [start - weight for start, weight in zip(self.starts, self.weights, strict=True)]
        share = self.samples / world.sums([self.samples])[0]
        sent = torch.cat([change.flatten() for change in own]).mul_(share)
        sent = sent.to(TYPES.get(self.exchange.compression, sent.dtype))
        self.travelling.append((distributed.all_reduce(sent, async_op=True), sent))
        waits = self.exchange.overlap and not last
        while len(self.travelling) > waits:
            self._arrive(*self.travelling.pop(0))
        for weight, anchor, change in zip(self.weights, self.anchors, own, strict=True):
            torch.sub(anchor, change, alpha=int(waits), out=weight)
        self.samples = 0

    def _arrive(self, work: Any, changes: Tensor) -> None:
        work.wait()
        parts = torch.split(changes.float(), [anchor.numel() for anchor in self.anchors])
        for anchor, part in zip(self.anchors, parts, strict=True):
            anchor.grad = part.view(anchor.shape)
        self.outer.step()
        self.outer.zero_grad()
