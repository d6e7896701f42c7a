"""Moving averages of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


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
        """The decay of an update after the share `done` of all steps; 1 for the last update."""
        return 0.95**5 * done**3 if done < 1 else 1.0

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Move the average towards the weights by 1 - `decay`, and set the weights to it."""
        for average, value in zip(*self.pairs(model), strict=True):
            value.copy_(average.lerp_(value, 1 - decay))


class MovingAverage(Average):
    """An exponential moving average that is tested and served, and changes no training.

    As in torchvision's references/classification (train.py, ExponentialMovingAverage): the average
    of parameters and buffers, with a decay for the number of samples and epochs instead of steps.
    That one moves every 32 steps, and accordingly further.
    """

    @staticmethod
    def decay(wish: float, samples: int, epochs: int) -> float:
        """The decay of a step of so many samples in a training of so many epochs."""
        return 1 - min(1.0, (1 - wish) * samples / epochs)

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Move the average towards the model by 1 - `decay`; counts are copied."""
        torch._foreach_lerp_(*self.pairs(model), 1 - decay)
        for average, value in zip(self.average.buffers(), model.buffers(), strict=True):
            if not value.is_floating_point():
                average.copy_(value)
