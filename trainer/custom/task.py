"""The user's own loss and metrics, as sums over samples: exact for any division of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainer.contract.job import Train
from trainer.core.job import JobError
from trainer.core.task import Sums, Task, classification_sums, cross_entropy
from trainer.custom.code import LONGEST, CodeError, blamed, find, kind_of, place_of
from trainer.custom.functions import own_function
from trainer.custom.nested import first_tensor


def own_task(train: Train) -> Task:
    """Return the task of a custom model; raises CodeError or JobError."""
    loss, metrics = own_function(train, "loss"), own_function(train, "metrics")
    if loss and train.label_smoothing:
        what = f"{place_of(loss)} is a custom loss, which does not smooth labels"
        raise JobError(f"train.label_smoothing: {what}; leave one of them out")
    for name in ("mixup", "cutmix"):
        if loss and getattr(train, name) is not None:
            what = f"{place_of(loss)} is a custom loss, which does not support mixed labels"
            raise JobError(f"train.{name}: {what}; leave one of them out")
    place = place_of(find(train.model))
    plain = partial(cross_entropy, label_smoothing=train.label_smoothing)
    return Task(
        loss=partial(loss_sum, loss) if loss else plain,
        sums=partial(measured, loss, metrics),
        count=samples_in,
        classifies=not loss and not metrics,
        guard=partial(blamed, f"{place}: the model, its loss or its metrics"),
        loading=partial(fitting, place),
    )


@contextmanager
def fitting(place: str, part: str) -> Iterator[None]:
    """Raise JobError if a checkpoint does not fit the model."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:LONGEST]
        what = f"{place}: {part} does not fit what the functions build now: {reason}"
        raise CodeError(
            f"{what}; give the job another name, or start again: kit deploy --fresh"
        ) from None


def samples_in(targets: Any) -> int:
    """Return the number of samples of a batch."""
    return len(first_tensor(targets))


def measured(
    loss: Callable[..., Any] | None, metrics: Callable[..., Any] | None, outputs: Any, targets: Any
) -> Sums:
    """Sum the loss and the metrics of the test samples of a batch."""
    if not loss and not metrics:
        return classification_sums(outputs, targets)
    sums = {"loss": loss_sum(loss, outputs, targets) if loss else cross_entropy(outputs, targets)}
    if not metrics:
        return sums
    place, found = place_of(metrics), metrics(outputs, targets)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise CodeError(f"{place}: it returns a {kind_of(found)}, not a dict by name")
    if "loss" in found:
        raise CodeError(f"{place}: the name loss is taken; give the metric another one")
    for name, value in found.items():
        tensor = torch.as_tensor(value)
        sums[name] = summed(tensor, samples_in(targets), f"{place}: the metric {name}")
    return sums


def loss_sum(loss: Callable[..., Any], outputs: Any, targets: Any) -> Tensor:
    """Sum the losses of a batch's samples."""
    found, place = loss(outputs, targets), place_of(loss)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise CodeError(f"{place}: it returns a {kind_of(found)}, not a Tensor of floats")
    if torch.is_grad_enabled() and not found.requires_grad:
        raise CodeError(f"{place}: the loss does not depend on the model's outputs")
    return summed(found, samples_in(targets), f"{place}: the loss")


def summed(value: Tensor, samples: int, what: str) -> Tensor:
    """Sum a function's result for a batch: a mean [], or a value for each sample [N]."""
    if value.ndim == 0:
        return value * samples
    if value.shape == (samples,):
        return value.sum()
    wanted = f"[] for the mean, or [{samples}] for each sample"
    raise CodeError(f"{what} has the shape {list(value.shape)}, not {wanted}")
