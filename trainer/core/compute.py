"""The objects of a training's computation, and the memory of its steps.

The type of the model's arithmetic (weights, gradients and optimizer stay in float32); torch.compile
and the number of graphs that it makes; moving averages of the weights; gradient norms of the newest
steps; whether the mean losses of the epochs fall.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from trainer.contract.job import TrainJob
from trainer.parallel.world import World

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose(wish: str, world: World) -> str:
    """Return the job's precision or, for auto, the fastest one of the oldest GPU's tensor cores.

    bf16 from Ampere (compute capability 8.0) on, fp16 from Volta (7.0) on; fp32 on CPUs.
    developer.nvidia.com/cuda-gpus lists the capabilities.
    """
    if wish != "auto":
        return wish
    own = torch.cuda.get_device_capability() if world.device.type == "cuda" else (0, 0)
    return fastest(min(world.gather(own)))


def fastest(capability: tuple[int, int]) -> str:
    """The fastest type of the tensor cores of this compute capability; (0, 0) is a CPU."""
    return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """A context in which operations use the precision, if they tolerate it."""
    type_ = TYPES[precision]
    return torch.autocast(device.type, type_, enabled=type_ != torch.float32)


def loss_scaler(precision: str, device: torch.device) -> Any:
    """Return a GradScaler: small fp16 gradients would underflow (Micikevicius et al., 1710.03740).

    All ranks skip a step whose gradients overflow, as they have the same mean gradients.
    """
    enabled = precision == "fp16"
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # Before torch 2.3.


BACKEND = "inductor"


@dataclass
class Compiled:
    """A model that is compiled at its first use.

    This calls torch.compile(module): module.compile() would compile `_call_impl`, whose frames
    Dynamo skips if a module has no code outside of torch, such as nn.Sequential.
    """

    parts: int = 0  # Parts passed to the compiler so far.
    before: int = 0  # Graphs of earlier models that Dynamo has made in this process.

    def compile(self, model: nn.Module, job: TrainJob, *, several: bool) -> nn.Module:
        """Return the module that replaces the model in computations, with the same parameters.

        `several`: whether there may be other ranks.
        """
        # The import takes a second, so other jobs skip it.
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


class Average(nn.Module):
    """A copy of a model that follows its weights and buffers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.average = copy.deepcopy(model).requires_grad_(requires_grad=False)

    def pairs(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return the averages, and the model's values: those that are floating-point numbers."""
        both = zip(self.average.state_dict().values(), model.state_dict().values(), strict=True)
        found = [pair for pair in both if pair[0].is_floating_point()]
        return [average for average, _ in found], [value for _, value in found]


class Lookahead(Average):
    """An average to which the weights are reset (Zhang et al. 2019, arXiv 1907.08610)."""

    EVERY = 5  # Steps between two updates.

    @staticmethod
    def decay(done: float) -> float:
        """The decay of an update after the share `done` of all steps; 1 in the last update."""
        return 0.95**5 * done**3 if done < 1 else 1.0

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Move the average towards the weights by 1 - `decay`, and set the weights to it."""
        for average, value in zip(*self.pairs(model), strict=True):
            value.copy_(average.lerp_(value, 1 - decay))


class MovingAverage(Average):
    """An exponential moving average that is tested and served, and does not affect the training.

    As in torchvision's references/classification (train.py, ExponentialMovingAverage): the average
    of parameters and buffers, with a decay for the number of samples and epochs instead of steps.
    torchvision updates its average every 32 steps, by an accordingly larger step.
    """

    @staticmethod
    def decay(wish: float, samples: int, epochs: int) -> float:
        """The decay of a step of `samples` in a training of `epochs`."""
        return 1 - min(1.0, (1 - wish) * samples / epochs)

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Move the average towards the model by 1 - `decay`; counts are copied."""
        torch._foreach_lerp_(*self.pairs(model), 1 - decay)
        for average, value in zip(self.average.buffers(), model.buffers(), strict=True):
            if not value.is_floating_point():
                average.copy_(value)


KEPT = 100
"""Steps over which the median norm is computed."""
LEAST = 20
"""Steps before any norm can be suspicious: the first norms vary much."""


class Norms:
    """The L2 norms of the newest gradients; the same on every rank."""

    def __init__(self) -> None:
        self._known: deque[float] = deque(maxlen=KEPT)

    def times_usual(self, norm: float) -> float:
        """Return the ratio of a norm to the median; 0 if that is not known yet."""
        usual = median(self._known) if len(self._known) >= LEAST else 0.0
        return norm / usual if usual > 0 and math.isfinite(norm) else 0.0

    def note(self, norm: float) -> None:
        """Add the norm of a step."""
        if math.isfinite(norm):
            self._known.append(norm)


AT_GUESSING = 0.99
"""An epoch has learned nothing if its mean loss is at least this share of the loss of guessing."""
LEARNED = 0.9
"""A training has learned something once its loss is below this share of the loss of guessing."""
EPOCHS, STEPS = 3, 200
"""Whole epochs and steps after the warm-up before a training that has never learned is stopped:
large data sets with many classes begin slowly."""


@dataclass
class Learning:
    """The progress of a run's learning; the same on every rank."""

    guess: float | None = None  # Loss of guessing in nats; None: the training is not judged.
    learned: bool = False  # In any epoch so far.
    epochs: int = 0  # Successive epochs at the loss of guessing.
    steps: int = 0  # Of these epochs.
    good: str = ""  # The last checkpoint of an epoch that had learned.
    last: int = 0  # The step at the end of the last epoch.

    def note(self, loss: float | None, step: int, *, warm: bool) -> str:
        """Count an epoch of a mean `loss`; return a description of a fault, or "".

        `warm`: the warm-up ended before the epoch. The loss is None if all steps were skipped.
        """
        taken, self.last = step - self.last, step
        if self.guess is None or not self.guess or loss is None:
            return ""
        self.learned = self.learned or loss < LEARNED * self.guess
        if loss < AT_GUESSING * self.guess:
            self.epochs = self.steps = 0
            return ""
        if warm:
            self.epochs, self.steps = self.epochs + 1, self.steps + taken
        like = f"its loss {loss:.4g} is that of guessing ({self.guess:.4g})"
        if self.learned:
            return f"has lost what it had learned: {like}"
        if self.epochs >= EPOCHS and self.steps >= STEPS:
            return f"learns nothing: {like} after {self.epochs} epochs"
        return ""
