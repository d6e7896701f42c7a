"""The loss of a training, and its metrics on the test samples.

The accuracy of each class is exact for any number of ranks. Shapes: N samples, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainer.core.job import JobError
from trainer.parallel.world import World
from trainer.record.telemetry import ByClass

MOST = 20
"""The most classes in an event: the length of log lines is limited."""


def untaught(labels: Sequence[str], found: ByClass) -> str:
    """Return a warning if a model is no better than one answer for all samples, otherwise ""."""
    if sum(map(bool, found.samples)) < 2:
        return ""
    number = max(range(len(found.samples)), key=lambda each: found.samples[each])
    every, correct, most = sum(found.samples), sum(found.correct), found.samples[number]
    if correct > most:
        return ""
    name = labels[number] if number < len(labels) else str(number)
    return (
        f"the model has learned nothing: {correct:,} of {every:,} test samples are right, and the "
        f"answer {name} to all would be right for {most:,}; look at the labels and at "
        "train.learning_rate"
    )


def named_classes(labels: Sequence[str], found: ByClass) -> dict[str, tuple[float, int]]:
    """Return the accuracy and the samples of some classes by name: the least accurate first."""
    known = [
        (accuracy, samples, labels[number] if number < len(labels) else str(number))
        for number, (accuracy, samples) in enumerate(
            zip(found.accuracy, found.samples, strict=True)
        )
        if accuracy is not None
    ]
    return {name: (accuracy, samples) for accuracy, samples, name in sorted(known)[:MOST]}


class Counts:
    """Counts this rank's samples by class."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None  # int64 [2, K]: samples, correct ones.

    def add(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch of scores [N, K] and labels [N]; ignore other shapes."""
        if scores.ndim != 2 or labels.ndim != 1:
            return
        classes = scores.shape[1]
        right = labels[scores.argmax(dim=1) == labels]
        parts = [torch.bincount(each, minlength=classes) for each in (labels, right)]
        found = torch.stack(parts)
        self._counts = found if self._counts is None else self._counts + found

    def combined(self, world: World) -> ByClass:
        """Sum all ranks' counts; all ranks must call it."""
        known = world.gather(None if self._counts is None else self._counts.tolist())
        counts = [each for each in known if each]
        if not counts:
            return ByClass()
        samples, correct = torch.tensor(counts).sum(dim=0).tolist()
        return ByClass(tuple(samples), tuple(correct))


LONGEST = 300  # Characters of torch's reason in a message.
TOP, TOP_ACCURACY = 5, "top5_accuracy"
Sums = dict[str, Tensor]
"""Sums over the samples of a batch by name, scalars: `loss`, and the metrics."""


@dataclass(frozen=True)
class Task:
    """Functions of a batch's outputs, float32, and its targets."""

    loss: Callable[[Any, Any], Tensor]
    """The sum of the samples' losses, for the backward pass."""
    sums: Callable[[Any, Any], Sums]
    """The metrics, summed over the samples."""
    count: Callable[[Any], int]
    """The number of summed values, from the targets."""
    classifies: bool = True
    """Whether outputs are scores of classes, [N, K], or of tokens, [N, K, T]."""
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    """A context for calls of the model and of these functions, which reports the user's faults."""
    loading: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    """A context in which a checkpoint's part is loaded; its argument names the part."""


def classification(label_smoothing: float) -> Task:
    """Cross entropy, and the accuracy: the trainer's own task."""
    return Task(
        loss=partial(cross_entropy, label_smoothing=label_smoothing),
        sums=classification_sums,
        count=lambda labels: int(labels.numel()),
        loading=fitting,
    )


@contextmanager
def fitting(part: str) -> Iterator[None]:
    """Raise JobError if a checkpoint does not fit the model, such as that of an older release."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:LONGEST]
        fix = "give the job another name, or start again: kit deploy --fresh"
        raise JobError(f"{part} does not fit the model of this trainer: {reason}; {fix}") from None


def cross_entropy(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Sum of the cross entropies of samples, in nats; a text's is the mean of its tokens.

    Labels may also be targets float32 [N, K], the shares of all classes.
    """
    loss = functional.cross_entropy(
        *rows(scores, labels), reduction="sum", label_smoothing=label_smoothing
    )
    values = scores.numel() // scores.shape[1]  # The classes are the second dimension.
    return loss * (len(labels) / values)


def classification_sums(scores: Tensor, labels: Tensor) -> Sums:
    """The number of correct samples, and the sum of the cross entropies in nats.

    With more than five classes also the samples whose class is among the five highest scores.
    """
    of_images = scores.ndim == 2
    scores, labels = rows(scores, labels)
    sums = {
        "loss": functional.cross_entropy(scores, labels, reduction="sum"),
        "accuracy": (scores.argmax(dim=1) == labels).sum(),
    }
    if of_images and scores.shape[1] > TOP:
        found = scores.topk(TOP, dim=1).indices == labels[:, None]
        sums[TOP_ACCURACY] = found.any(dim=1).sum()
    return sums


def rows(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a text's scores [N, K, T] and labels [N, T] as [N T, K] and [N T]; others unchanged.

    In the model's memory the scores of a token are adjacent, which is fastest for their softmax.
    """
    if scores.ndim != 3:
        return scores, labels
    return scores.transpose(1, 2).flatten(0, 1), labels.flatten()
