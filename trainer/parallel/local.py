"""Local steps: each rank trains its replica alone, and the changes are merged at intervals.

`kit plan` computes from bytes and link speed which mode suits a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, distributed, nn

from trainer.contract.job import Exchange
from trainer.parallel.replicas import Replicas
from trainer.parallel.world import World

OUTER = {"local_sgd": (1.0, 0.0), "diloco": (0.7, 0.5)}
"""Rate and Nesterov momentum of the outer step on the mean change of all ranks. (1, 0) gives the
mean of their weights: post-local SGD (Lin et al. 2018, arXiv 1808.07217). DiLoCo (Douillard et al.
2023, arXiv 2311.08105) uses 0.7 and 0.9, with AdamW inside; short runs with SGD diverged at 0.9."""
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class LocalReplicas(Replicas):
    """Replicas that differ between two merges, after a warm-up of plain steps.

    `anchors` are the parameters after the last merge; `outer` moves them by the mean of the ranks'
    changes in a round of steps, weighted by their samples. With `overlap` the changes are exchanged
    during the next round and the ranks do not wait: each continues from the anchors and its own
    changes, which the others receive a round later (CO2: Sun et al. 2024, arXiv 2401.16265).
    """

    optimizers_differ = True
    holds_all = False

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
        super().__init__(model, exchange, world, mark, module, alike=alike)
        self._exchange, self._mark = exchange, mark
        self._weights = [each for each in model.parameters() if each.requires_grad]
        self._anchors = [weight.detach().clone() for weight in self._weights]
        overlap = exchange.overlap
        self._starts = [each.clone() for each in self._anchors] if overlap else self._anchors
        rate, momentum = OUTER[exchange.mode]
        nesterov = momentum > 0
        self._outer = torch.optim.SGD(self._anchors, rate, momentum=momentum, nesterov=nesterov)
        self._travelling: list[tuple[Any, Tensor]] = []  # Pending all-reduces, with their values.
        self._begun = False  # Whether a round has begun.
        self._samples = 0  # Of this rank in this round.
        self._bad_loss = ""  # The first of this round.

    def parts(self) -> dict[str, Any]:
        """Return the model, and the momentum of the outer step."""
        return {**super().parts(), "outer": self._outer}

    @torch.no_grad()
    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return this rank's state, with parameters and pending all-reduces if they overlap."""
        own = super().own(modules)
        if self._travelling:
            for work, _ in self._travelling:
                self._wait(work)
            own["round"] = {
                "weights": [weight.detach().clone() for weight in self._weights],
                "anchors": [anchor.clone() for anchor in self._anchors],
                "outer": deepcopy(self._outer.state_dict()),
                "travelling": [changes for _, changes in self._travelling],
            }
        return own

    @torch.no_grad()
    def settle(self, modules: Sequence[nn.Module]) -> None:
        """Wait for the pending all-reduces; then all ranks have the same parameters."""
        super().settle(modules)
        if self._travelling:
            self._arrive(0)
            for weight, anchor in zip(self._weights, self._anchors, strict=True):
                weight.copy_(anchor)

    @torch.no_grad()
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Restore what `own` returned."""
        super().load_own(own, modules)
        if "round" in own:
            found, device = own["round"], self.world.device
            for target, source in zip(
                (*self._weights, *self._anchors),
                (*found["weights"], *found["anchors"]),
                strict=True,
            ):
                target.copy_(source)
            self._outer.load_state_dict(found["outer"])
            self._travelling = [(ARRIVED, each.to(device)) for each in found["travelling"]]

    @torch.no_grad()
    def begin_local(self, step: int, samples: int) -> bool:
        """Begin a step; steps of the warm-up are not local."""
        if step <= self._exchange.warm_up_steps:
            return False
        if not self._begun:
            self._begun, self._bad_loss = True, ""
            for known in (self._starts, *(() if self._travelling else (self._anchors,))):
                for old, weight in zip(known, self._weights, strict=True):
                    old.copy_(weight)
        self._samples += samples
        return True

    def skip_local(self, samples: int) -> None:
        """As in `Ranks`."""
        self._samples -= samples

    def end_local(self, step: int, bad_loss: str, *, last: bool) -> str | None:
        """End a step; a round has `every_steps` steps, or ends with its epoch."""
        self._bad_loss = self._bad_loss or bad_loss
        due = (step - self._exchange.warm_up_steps) % self._exchange.every_steps == 0
        return self._bad_loss if due or last else None

    @torch.no_grad()
    def merge(self, *, last: bool) -> None:
        """Merge a round; without overlap the ranks have the same parameters after each."""
        starts = zip(self._starts, self._weights, strict=True)
        own = [start - weight for start, weight in starts]
        share = self._samples / (self.world.sums([self._samples])[0] or 1)
        sent = torch.cat([change.flatten() for change in own]).mul_(share)
        sent = sent.to(TYPES.get(self._exchange.compression, sent.dtype))
        self._travelling.append((distributed.all_reduce(sent, async_op=True), sent))
        waits = self._exchange.overlap and not last
        self._arrive(int(waits))
        for weight, anchor, change in zip(self._weights, self._anchors, own, strict=True):
            torch.sub(anchor, change, alpha=int(waits), out=weight)
        self._begun, self._samples = False, 0
        self._mark("communication")

    def _wait(self, work: Any) -> None:
        if work is not ARRIVED:
            super()._wait(work)

    def _arrive(self, left: int) -> None:
        """Apply the pending all-reduces, except for the `left` latest."""
        while len(self._travelling) > left:
            work, changes = self._travelling.pop(0)
            self._wait(work)
            parts = torch.split(changes.float(), [anchor.numel() for anchor in self._anchors])
            for anchor, part in zip(self._anchors, parts, strict=True):
                anchor.grad = part.view(anchor.shape)
            self._outer.step()
            self._outer.zero_grad()


ARRIVED: Any = None
"""Stands for an all-reduce that was complete when the checkpoint was written."""
