"""Pipeline parallelism: the ranks have consecutive blocks of a model, as its stages.

Micro-batches pass through the stages; the stages compute different micro-batches at the same time.
Each stage alternates forward and backward passes as soon as it can, so that it keeps the
activations of few micro-batches (1F1B: Narayanan et al. 2019, PipeDream). With m micro-batches and
p stages, the share (p - 1) / (m + p - 1) of the time is idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from trainer.contract.job import TrainJob
from trainer.parallel.sharded import Division, Sharded
from trainer.parallel.world import World

Loss = Callable[[Tensor, Tensor], Tensor]


class Pipelined(Sharded):
    """One stage of a model on each rank."""

    def __init__(
        self,
        model: nn.Module,
        job: TrainJob,
        world: World,
        precision: torch.dtype,
        division: Division,
    ) -> None:
        """`division` reduces the model, which may be on the meta device, to one stage."""
        super().__init__(model, job, world, precision, division)
        self.number, self.stages = self.grid.place["pipeline"], self.grid.sizes["pipeline"]
        self.measures = self.is_last and self.grid.place["tensor"] == 0
        self._schedule: Any = None
        self._loss: Loss | None = None

    @property
    def is_first(self) -> bool:
        """Whether this stage gets the samples."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the scores."""
        return self.number == self.stages - 1

    def step(self, inputs: Tensor, targets: Tensor, pieces: int, loss: Loss) -> Tensor:
        """Compute the gradients of the summed `loss` of `pieces` micro-batches of equal size.

        Inputs and targets have all micro-batches, the same on each stage. Return the losses,
        [pieces], on all stages.
        """
        if self._schedule is None:
            self._schedule = self._connect(pieces)
        self._loss = loss
        losses = list[Tensor]()
        if self.is_first:
            self._schedule.step(inputs)
        elif self.is_last:
            self._schedule.step(tokens=inputs, target=targets, losses=losses)
        else:
            self._schedule.step(tokens=inputs)
        found = torch.stack(losses).detach() if losses else torch.zeros(pieces)
        return self.from_last(found.to(self.world.device))

    def _connect(self, pieces: int) -> Any:
        group = self.mesh["pipeline"].get_group()
        stage = PipelineStage(self.model, self.number, self.stages, self.world.device, group=group)

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            assert self._loss
            return self._loss(outputs, targets)

        return Schedule1F1B(stage, pieces, loss_fn=loss, scale_grads=False)

    def from_last(self, values: Tensor) -> Tensor:
        """Broadcast values of the last stage to all stages."""
        group = self.mesh["pipeline"].get_group()
        last = distributed.get_global_rank(group, self.stages - 1)
        self.wait_in("pipeline", distributed.broadcast, values, last)
        return values

    @torch.no_grad()
    def outputs(self, inputs: Tensor, width: int) -> Tensor | None:
        """Pass samples through the stages; return the scores on the last, None on the others.

        Between two stages, features have the shape [N, T, width].
        """
        group = self.mesh["pipeline"].get_group()
        ranks = [distributed.get_global_rank(group, n) for n in range(self.stages)]
        tokens = {} if self.is_first else {"tokens": inputs}
        if not self.is_first:
            inputs = torch.empty(*inputs.shape, width, device=inputs.device)
            distributed.recv(inputs, ranks[self.number - 1], group=group)
        found: Tensor = self.model(inputs, **tokens)
        if self.is_last:
            return found
        distributed.send(found.float().contiguous(), ranks[self.number + 1], group=group)
        return None
