"""The accuracy of each class on the test samples, exact for any number of ranks.

Shapes: N samples, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.parallel.world import World
from trainer.record.telemetry import ByClass

MOST = 20
"""Classes of an event: a log keeps only so many characters."""


def untaught(labels: Sequence[str], found: ByClass) -> str:
    """Say that a model is no better than one answer for all samples; "" if it is better."""
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
        """Count a batch of scores [N, K] and labels [N]; other shapes are no classification."""
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
