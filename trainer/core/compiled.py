"""torch.compile, and the number of graphs that it makes of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.contract.job import TrainJob

BACKEND = "inductor"


@dataclass
class Compiled:
    """A model that is compiled at its first use.

    This calls torch.compile(module): module.compile() would compile `_call_impl`, whose frames
    Dynamo skips if a module has no code outside of torch, such as nn.Sequential.
    """

    parts: int = 0  # Parts passed to the compiler so far.
    before: int = 0  # Graphs that Dynamo had made in this process.

    def compile(self, model: nn.Module, job: TrainJob, *, several: bool) -> nn.Module:
        """Return the module that replaces the model in computations, with the same parameters.

        `several`: there may be more ranks than this one.
        """
        # The import takes a second, which other jobs need not spend.
        from torch._dynamo import config, lookup_backend

        # One compiled backward pass would return all gradients at its end. For DDP, Dynamo divides
        # the graph at the ends of buckets, so that communication overlaps with compute.
        config.optimize_ddp = several and job.exchange.mode == "every_step"
        compiler = lookup_backend(BACKEND)

        def count(graph: Any, inputs: Any) -> Any:
            self.parts += 1
            return compiler(graph, inputs)

        self.before = graphs_so_far()
        # An epoch has two batch sizes. A graph for each is faster than one for any size, and a
        # resumed training has the same graphs.
        dynamic = None if job.train.balance == "auto" else False
        compiled: Any = torch.compile(model, backend=count, dynamic=dynamic)
        module: nn.Module = compiled
        return module

    def __str__(self) -> str:
        """Describe the compiled graphs."""
        graphs = graphs_so_far() - self.before
        text = f"{graphs} graph{'s' * (graphs != 1)}"
        if self.parts > graphs:
            text += f" in {self.parts} parts, so that gradients leave during the backward pass"
        return text


def graphs_so_far() -> int:
    """Return the number of graphs that Dynamo has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
