"""The reports of a training. Each report is made once, and all sinks get the same one.

The sinks are lines for people (core/live.py, core/report.py), events for programs
(core/announce.py), metrics (core/meter.py), the record with TensorBoard (recorder.py), and
metrics.jsonl (core/figures.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, nan

from torch import Tensor

from trainer.checkpoints.format import Progress


@dataclass(frozen=True)
class Place:
    """A position in the whole job."""

    epoch: int  # Complete epochs.
    epochs: int  # Of the job.
    step: int  # Optimizer steps done.
    steps: int  # Of the whole job, if the world size does not change any more.
    world_size: int  # Processes over all hosts.

    @property
    def last(self) -> bool:
        """Whether all epochs are done."""
        return self.epoch == self.epochs


@dataclass(frozen=True)
class StepFigures:
    """A step of this rank, and the sums of its epoch so far."""

    progress: Progress  # The position after it.
    samples: int  # Of this rank.
    moved: bool  # Whether this rank's weights have changed.
    loss: Tensor  # Sum of this rank's losses in the epoch, on its device.
    seen: float  # Samples in that sum.

    @property
    def mean(self) -> float:
        """This rank's mean loss of the epoch; waits for the device."""
        return self.loss.item() / max(self.seen, 1)


@dataclass(frozen=True)
class Trained:
    """The steps of an epoch, over all ranks; after an interruption, only `skipped` is known."""

    loss: float | None = None  # Mean cross entropy of the training samples, nats.
    images_per_second: float | None = None  # Without evaluation and saving.
    skipped: tuple[int, ...] = ()  # Steps that were skipped for a non-finite loss.
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of all ranks' time: data, compute, and communication not hidden by compute."""
    slow: dict[str, float] = field(default_factory=dict)
    """Slow ranks, with the ratio of their time to that of the others."""
    tokens_per_second: float | None = None  # Of a text.
    mfu: float | None = None  # Share of the GPUs' peak; only for a text, and if it is known.


@dataclass(frozen=True)
class ByClass:
    """The number of test samples of each class, and of the correctly classified ones."""

    samples: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()

    @property
    def accuracy(self) -> tuple[float | None, ...]:
        """The share of each class's samples that are correct; None without samples."""
        both = zip(self.correct, self.samples, strict=True)
        return tuple(correct / samples if samples else None for correct, samples in both)


@dataclass(frozen=True)
class Evaluation:
    """The means over all samples of the validation or test data."""

    samples: int  # Or characters, of text; 0: nothing was evaluated.
    loss: float  # Of a classification: the mean cross entropy, in nats.
    metrics: dict[str, float]
    by_class: ByClass = field(default_factory=ByClass)
    classes: bool = False  # Of a classification, but not of a text.

    @property
    def accuracy(self) -> float | None:
        """The share of the samples that are classified correctly, if the model classifies."""
        return self.metrics.get("accuracy")

    @property
    def figures(self) -> dict[str, float]:
        """The finite means by name, the loss among them."""
        found = {"loss": self.loss, **self.metrics}
        return {name: value for name, value in found.items() if isfinite(value)}

    @property
    def others(self) -> dict[str, float]:
        """The finite metrics without the accuracy."""
        found = self.metrics.items()
        return {name: value for name, value in found if name != "accuracy" and isfinite(value)}


NOTHING = Evaluation(0, nan, {})


@dataclass(frozen=True)
class Figures:
    """The figures of a training at its start, after an epoch or at a stop."""

    place: Place
    batch: tuple[float, ...]  # Each rank's share of the global batch.
    stall: float | None  # Seconds that training paused for the checkpoint of this step.
    trained: Trained = field(default_factory=Trained)
    found: Evaluation = NOTHING  # By the validation samples or, without any, the test samples.
    seconds: float = 0.0  # Duration of that evaluation.
    saved: bool = False  # Whether a checkpoint of this step was due.
    best: str = ""  # At the end, if there is a validation: the checkpoint that was tested.
    test: Evaluation = NOTHING  # At the end, if there is a validation: by the test samples.

    @property
    def newest(self) -> Evaluation:
        """The test at the end, if there is one, otherwise the validation."""
        return self.test if self.best else self.found
