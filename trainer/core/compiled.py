"""torch.compile, and how many graphs it makes of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.contract.job import TrainJob
from trainer.parallel.world import World

BACKEND = "inductor"


@dataclass
class Compiled:
    """A model that is compiled when it is first used.

    It is torch.compile of the module: module.compile() makes a callable of `_call_impl`, whose
    frames Dynamo passes over where a module has no code outside of torch, as nn.Sequential.
    """

    parts: int = 0  # That the compiler was given, so far.
    before: int = 0  # Graphs that Dynamo had made in this process.

    def compile(self, model: nn.Module, job: TrainJob, world: World) -> nn.Module:
        """Return what computes in the place of the model, with the same parameters."""
        # To import it takes a second, which only such a job has to spend.
        from torch._dynamo import config, lookup_backend

        # Within one compiled backward pass all gradients would come at its end. Dynamo divides the
        # graph where DDP's buckets end, so that they leave meanwhile; nobody else needs that.
        config.optimize_ddp = world.size > 1 and job.exchange.mode == "every_step"
        compiler = lookup_backend(BACKEND)

        def count(graph: Any, inputs: Any) -> Any:
            self.parts += 1
            return compiler(graph, inputs)

        self.before = graphs_so_far()
        # A graph for each size of batch, of which there are two in an epoch, is faster than one for
        # any, and an interrupted training has the same ones again.
        dynamic = None if job.train.balance == "auto" else False
        compiled: Any = torch.compile(model, backend=count, dynamic=dynamic)
        module: nn.Module = compiled
        return module

    def __str__(self) -> str:
        """Say what the compiler has made."""
        graphs = graphs_so_far() - self.before
        text = f"{graphs} graph{'s' * (graphs != 1)}"
        if self.parts > graphs:
            text += f" in {self.parts} parts, so that gradients leave during the backward pass"
        return text


def graphs_so_far() -> int:
    """Count the graphs that Dynamo has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
