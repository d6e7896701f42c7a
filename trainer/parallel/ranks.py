"""The interface of a method by which the ranks train one model together.

It is the only interface between the training and the division of its work. In its
implementations each rank has a whole replica (replicas.py, local.py), a part of one (sharded.py),
or a part of one stage of its layers (pipeline.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn


class Ranks(ABC):
    """One model that all ranks train; every rank must make the same calls after the same step."""

    model: nn.Module
    """The model without wrappers: a rank can evaluate it without the others."""
    optimizers_differ: bool
    """Whether the optimizer's state differs between ranks."""
    holds_all: bool
    """Whether a rank's memory has the whole state of the training."""
    data_rank: int
    data_size: int
    """The index of this rank's part of each batch, and the number of parts."""
    counts: bool = True
    """Whether this rank reports its samples; others with the same samples do not."""
    measures: bool = True
    """Whether this rank measures the test samples that it gets; others get the same."""
    way: tuple[Any, ...]
    """The settings that must be equal for a rank's own part of a checkpoint to fit."""

    @abstractmethod
    def release(self) -> None:
        """Detach this object from the model; it is not used again."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the scores of training samples; their backward pass averages gradients."""

    @abstractmethod
    def unsynchronised(self) -> AbstractContextManager[None]:
        """Return a context in which forward and backward do not exchange gradients."""

    @abstractmethod
    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Scale the gradients of all parameters down to an L2 norm of at most `norm`."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Return by name the objects whose state a checkpoint must hold: the model, and others."""

    @abstractmethod
    def share_buffers(self, modules: Sequence[nn.Module]) -> None:
        """Give all ranks the same buffers: those of BatchNorm depend on each rank's samples."""

    @abstractmethod
    def settled(self, modules: Sequence[nn.Module]) -> AbstractContextManager[dict[str, Any]]:
        """Return a context in which all ranks have the same model and buffers of `modules`.

        Its value is this rank's own state, for a checkpoint. Its end restores that state, so that
        checkpoints do not change a training.
        """

    @abstractmethod
    def own(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return a copy of this rank's own state."""

    @abstractmethod
    def load_own(self, own: dict[str, Any], modules: Sequence[nn.Module]) -> None:
        """Restore what `own` returned, or as much of it as exists."""

    @abstractmethod
    def require_equal(self, *, buffers: bool = True) -> int:
        """Raise HaltError on all ranks if the ranks do not have the same model.

        Without `buffers`, those of layers such as BatchNorm may differ, as they do within an epoch.

        Return its fingerprint.
        """

    def prepare(self, scale: Callable[[], float]) -> Callable[[], None]:  # noqa: ARG002
        """Prepare the exchange's own state for a step whose loss has a scale.

        Returns a function that restores this state; it may be called more than once.
        """
        return lambda: None

    def begin_local(self, step: int, samples: int) -> bool:  # noqa: ARG002
        """Begin a step, counted from 1, on `samples` of this rank; return whether it is local.

        In a local step this rank exchanges neither gradients nor messages. By default, no step is
        local.
        """
        return False

    def skip_local(self, samples: int) -> None:
        """Leave the samples of this local step out of its round: it has changed nothing."""
        raise NotImplementedError

    def end_local(self, step: int, bad_loss: str, *, last: bool) -> str | None:  # noqa: ARG002
        """End a local step; return None while its round continues.

        At the end of a round, or with the `last` step of an epoch, return the first loss of the
        round that was not finite, or ""; then the ranks must `merge`.
        """
        return None

    def merge(self, *, last: bool) -> None:
        """Merge the ranks' rounds; after the `last` round they have the same parameters."""
        raise NotImplementedError
