"""The learning rate of each step: stateless, and independent of the world size."""

from __future__ import annotations

import math

from trainer.checkpoints.format import Progress
from trainer.contract.job import Train
from trainer.core.run import Run

TRIANGLE = (0.2, 0.23, 0.07)
"""Share of the rate at the start, share of the training at which it is whole, share of the rate at
the end: those of cifar10-airbench (Jordan 2024, arXiv 2404.00498)."""


def set_rate(run: Run, progress: Progress) -> None:
    """Give the optimizer the rate of the next step."""
    rate = learning_rate(run.job.train, share_done(run, progress))
    for group in run.optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def share_done(run: Run, progress: Progress) -> float:
    """Share of the job's samples that is done."""
    return (progress.epoch + progress.position / len(run.data.train)) / run.job.train.epochs


def learning_rate(train: Train, done: float) -> float:
    """The rate of the next step, after a share `done` of the training.

    cosine: annealing without restarts (Loshchilov and Hutter 2016, arXiv 1608.03983).
    """
    if train.schedule == "constant":
        return train.learning_rate
    if train.schedule == "triangle":
        start, peak, end = TRIANGLE
        rising = done < peak
        along = done / peak if rising else (1 - done) / (1 - peak)
        low = start if rising else end
        return train.learning_rate * (low + (1 - low) * along)
    return train.learning_rate * (1 + math.cos(math.pi * done)) / 2
