"""Custom models: the description of their inputs in checkpoints, and their own answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoints.manifest import UnusableError, is_whole, shown
from trainer.contract.job import Train
from trainer.contract.own import is_own
from trainer.core.job import JobError
from trainer.custom.code import CodeError, place_of
from trainer.custom.data import OwnData
from trainer.custom.functions import answers, own_function
from trainer.data.samples import Samples
from trainer.serve.kind import Array, Kind

TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
LARGEST = 2**24  # Values of a sample: a checkpoint's shape must not exhaust the memory.
DIMENSIONS = 8


def require_named(model: str, own: str) -> None:
    """Raise UnusableError if a checkpoint names another custom module than the server.

    The server would import it: a checkpoint of another host must not choose what runs here.
    """
    if is_own(model) and model != own:
        named = f"its model is {shown(model)}"
        raise UnusableError(f"{named}, and this server's job has {own or 'none of its own'}")


def has_answer(train: Train) -> bool:
    """Whether a custom function answers; raises UnusableError for a fault in it."""
    try:
        return own_function(train, "answer") is not None
    except JobError as error:
        raise UnusableError(str(error)) from error


def own_kind(train: Train, labels: list[str], described: Any) -> Kind:
    """Return the kind of a model for custom data; raises UnusableError."""
    about = described if isinstance(described, dict) else {}
    shape, values = about.get("shape"), about.get("type")
    if not isinstance(shape, list) or not all(map(is_whole, shape)) or values not in TYPES:
        raise UnusableError("its inputs are no single tensor of numbers, as a server needs")
    if len(shape) > DIMENSIONS or not 0 < math.prod(shape) <= LARGEST:
        raise UnusableError(f"a sample of the shape {shape} is too large or empty")
    try:
        answers(train)
    except JobError as error:
        raise UnusableError(str(error)) from error
    return Kind(train.dataset, train.model, tuple(shape), tuple(labels), 0, values, answers=True)


def own_stand_in(kind: Kind) -> OwnData:
    """Return a minimal data set for building a model for custom data."""
    nothing = torch.zeros(1)
    empty = Samples(nothing, nothing)
    return OwnData(
        empty,
        empty,
        nothing,
        nothing,
        len(kind.labels),
        labels=kind.labels,
        sample=kind.shape,
        kind=kind.values,
    )


def typed(kind: Kind, batch: Tensor) -> Tensor:
    """Return a batch of inputs in the type of the training."""
    found: Tensor = batch.to(getattr(torch, kind.values))
    return found


def answer_with(train: Train) -> Callable[[Any, int], list[Any]]:
    """Return the function from a batch of outputs and its size to JSON values; raises JobError."""
    function = answers(train)

    def checked(outputs: Any, size: int) -> list[Any]:
        found = function(outputs)
        if len(found) != size:
            what = f"it returned {len(found)} values for {size} samples"
            raise CodeError(f"{place_of(own_function(train, 'answer'))}: {what}")
        return found

    return checked


def probe(kind: Kind, draw: torch.Generator) -> Array:
    """Return a test sample for a model: normally distributed numbers, or zeros of integer types."""
    if kind.integers:
        return torch.zeros(kind.shape, dtype=torch.int64).numpy()
    return torch.randn(kind.shape, generator=draw).numpy()
