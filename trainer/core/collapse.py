"""A training that learns nothing, or no longer: its loss is that of guessing.

Guessing gives each class its share of the training samples, whatever the sample: its mean cross
entropy is the entropy of the labels, ln K for K classes of equal size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.checkpoints.format import Progress
from trainer.checkpoints.layout import folder_name
from trainer.contract import events
from trainer.core.by_class import untaught
from trainer.core.run import Run
from trainer.output import say_error
from trainer.parallel.halt import HaltError
from trainer.record.telemetry import Evaluation

COUNTED = 2**20
"""Tokens of a text of which the shares are counted."""


def entropy_of(labels: Tensor, classes: int = 0, smoothing: float = 0.0) -> float:
    """Return the entropy in nats of class numbers, int64 [N], of so many classes."""
    shares = labels.bincount(minlength=classes).double() / max(len(labels), 1)
    shares = (1 - smoothing) * shares + smoothing / len(shares)
    return float(-torch.special.xlogy(shares, shares).sum())


def guessing(run: Run) -> float | None:
    """Return the loss of guessing, in nats; None where the loss is no cross entropy of classes.

    Smoothed labels are guessed as such: the shares of the classes are smoothed, too.
    """
    smoothing = run.job.train.label_smoothing
    if not run.task.classifies:
        return None
    train: Any = run.data.train
    if run.data.text:
        tokens = getattr(train, "tokens", None)
        if tokens is None:
            return None
        known = torch.from_numpy(np.asarray(tokens[:COUNTED]).astype(np.int64))
        return entropy_of(known, run.data.classes, smoothing)
    labels = train.labels
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        return None
    return entropy_of(labels.cpu(), run.data.classes, smoothing)


def judge(
    run: Run, progress: Progress, loss: float | None, found: Evaluation, *, saved: bool
) -> None:
    """Look at an epoch's mean loss; all ranks must call it, after the epoch's checkpoint.

    Raises HaltError on all ranks if nothing is learned, unless the job goes on then.
    """
    state, train = run.learning, run.job.train
    length = train.warm_up or 0
    begun = state.last if length >= 1 else (progress.epoch - 1) / train.epochs
    wrong = state.note(loss, progress.step, warm=begun >= length)
    if saved and not wrong and state.learned:
        state.good = folder_name(progress.step)
    last = progress.epoch == train.epochs
    if not wrong and last and (text := untaught(run.data.labels, found.by_class)):
        tell(run, text)
    if not wrong:
        return
    what = f"the training {wrong}"
    if train.on_collapse == "continue":
        tell(run, what)
        return
    good = f"the last good checkpoint is {state.good}; " if state.good else ""
    fix = "look at the labels, lower train.learning_rate, or leave it to the model's recipe"
    raise HaltError("loss", f"{what}; {good}{fix}; `on_collapse: continue` goes on")


def tell(run: Run, what: str) -> None:
    """Warn people and kit; rank 0 says it."""
    if run.world.rank == 0:
        say_error(f"trainer: warning: {what}")
        run.announcer.emit(events.Untaught(message=what))
