"""The interface to a way in which the ranks train one model together.

The one interface between the training and a way to divide its work. Each rank has a whole replica
in the ways that there are (replicas.py, local.py); one that shards the parameters, as FSDP does,
would be another implementation: only what is here knows where parameters lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn


class Ranks(ABC):
    """One model that all ranks train; every rank must make the same calls after the same step."""

    model: nn.Module
    """The model itself: a rank can evaluate it without the others."""
    optimizers_differ: bool
    """Whether each rank's optimizer has a state of its own."""
    way: tuple[Any, ...]
    """The settings under which what a rank has of its own fits."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the scores of training samples, so that gradients are averaged behind them."""

    @abstractmethod
    def unsynchronised(self) -> AbstractContextManager[None]:
        """Return a context in which forward and backward leave gradients on this rank."""

    @abstractmethod
    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Scale the gradients of all parameters of the model down to an L2 norm of at most this."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Return what has a state that a checkpoint must hold, by name: the model, and more."""

    @abstractmethod
    def share_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the same buffers: each has seen its own samples in BatchNorm."""

    @abstractmethod
    def settled(self, modules: Sequence[nn.Module]) -> AbstractContextManager[dict[str, Any]]:
        """Return a context in which all ranks have one model, and the buffers of `modules` alike.

        It gives what this rank had of its own before, for a checkpoint; afterwards it has it again,
        so that a training with checkpoints is the same as one without.
        """

    @abstractmethod
    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return what this rank alone has, untouched by what follows."""

    @abstractmethod
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Give this rank what `own` gave, or as much of it as is there."""

    @abstractmethod
    def require_equal(self) -> int:
        """Raise HaltError, on all ranks, where the ranks do not have one and the same model.

        Return the fingerprint of the one that they have.
        """

    @abstractmethod
    def begin_local(self, step: int, samples: int) -> bool:
        """Begin a step, counted from 1, on so many samples; return whether it is local.

        The gradients of a local step stay on this rank, which tells the others nothing of it.
        """

    @abstractmethod
    def end_local(self, step: int, bad_loss: str, *, last: bool) -> str | None:
        """End a local step; return None while its round goes on.

        At the end of a round, or with the `last` step of an epoch, return the first loss of the
        round that was not finite, or an empty text; the ranks `merge` next.
        """

    @abstractmethod
    def merge(self, *, last: bool) -> None:
        """Bring the ranks' rounds together; after the `last` one they have the same parameters."""
