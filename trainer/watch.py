"""Where the time of a training goes, and which rank keeps the others waiting."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import GradBucket  # type: ignore[attr-defined]
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

    from trainer.world import World

KINDS = ("data", "compute", "communication")
CHANCE = 0.1  # Seconds more than the others that tell nothing, in an epoch of a few steps.
SLOW = 1.3
"""Times the median of the others' own work (data and compute) from which on a rank is named."""


class Watch:
    """Divides the time of this rank's device between `KINDS`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def attach(self, replica: DistributedDataParallel) -> None:
        """Mark when the last gradients are ready: what is left of a backward pass is waiting."""

        def exchange(group: Any, bucket: GradBucket) -> Future[Tensor]:
            if bucket.is_last():
                self.mark("compute")
            return allreduce_hook(group, bucket)

        # DistributedDataParallel does not understand annotations that are texts.
        exchange.__annotations__.clear()
        replica.register_comm_hook(None, exchange)

    def mark(self, kind: str) -> None:
        """The time since the last mark went to `kind`; a GPU notes it when it gets there."""
        now: Any = time.monotonic()
        if self._cuda:
            now = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            now.record()
        self._marks.append((kind, now))

    def seconds(self) -> dict[str, float]:
        """Seconds of each kind since this was asked last; the device must have done its work."""
        spent = dict.fromkeys(KINDS, 0.0)
        for (_, began), (kind, ended) in pairwise(self._marks):
            spent[kind] += began.elapsed_time(ended) / 1000 if self._cuda else ended - began
        self._marks = []
        return spent


@dataclass(frozen=True)
class Sight:
    """What all ranks' watches say together."""

    shares: dict[str, float]
    """Of each of `KINDS` in the time of all ranks; 1 in all."""
    slow: dict[str, float]
    """Ranks, with host and device, and how many times as long as the others they work."""


def look(world: World, watch: Watch) -> Sight:
    """Compare the ranks' times since the last look; all ranks must call it."""
    found = world.gather((world.name, watch.seconds()))
    total = sum(sum(spent.values()) for _, spent in found)
    work = [spent["data"] + spent["compute"] for _, spent in found]
    slow = {}
    for rank, (name, _) in enumerate(found):
        usual = statistics.median([*work[:rank], *work[rank + 1 :]] or work)
        if work[rank] > SLOW * usual and work[rank] - usual > CHANCE:
            slow[name] = round(work[rank] / usual, 2)
    shares = {kind: sum(spent[kind] for _, spent in found) / total for kind in KINDS}
    return Sight(shares, slow)
