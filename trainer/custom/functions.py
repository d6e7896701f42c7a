"""Calls the user's own functions of a job with settings, and checks their results."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.contract.job import Train
from trainer.contract.own import is_own
from trainer.contract.recipes import optimizer_of, recipe_of
from trainer.core.job import JobError
from trainer.custom import Settings
from trainer.custom.code import CodeError, blamed, find, find_optional, kind_of, place_of

ROUNDING = 1e-6
"""Tolerance below 0 for a schedule that ends at 0."""


def settings_of(train: Train, **known: Any) -> Settings:
    """Return the settings for the functions of a job."""
    return Settings(
        options=train.options or {},
        seed=train.seed,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        **known,
    )


def data_settings(train: Train, root: Path) -> Settings:
    """Return the settings of `data`; `root` is the data folder."""
    fetched = json.loads(os.environ.get("KIT_DATA_PATHS") or "{}")
    sets = {name: Path(path) for name, path in fetched.items()}
    return settings_of(train, folder=root, data_sets=sets)


def build_own(train: Train, shape: tuple[int, ...], labels: tuple[str, ...]) -> nn.Module:
    """Build the user's own model for inputs of a shape; raises CodeError."""
    build = find(train.model)
    with blamed(place_of(build)):
        model = build(settings_of(train, shape=shape, labels=labels))
    if not isinstance(model, nn.Module):
        raise CodeError(f"{place_of(build)}: it returns a {kind_of(model)}, not an nn.Module")
    if not any(each.requires_grad for each in model.parameters()):
        raise CodeError(f"{place_of(build)}: its model has no parameters to train")
    return model


def build_own_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer | None:
    """Build the user's own optimizer, if there is one; raises CodeError.

    Each group gets its `scale`, the ratio of its rate to the job's.
    """
    function = own_function(train, "optimizer")
    if function is None:
        return None
    refuse_both("optimizer", train)
    with blamed(place_of(function)):
        optimizer = function(model, settings_of(train))
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = f"it returns a {kind_of(optimizer)}, not a torch.optim.Optimizer"
        raise CodeError(f"{place_of(function)}: {what}")
    if fault := optimizer_fault(optimizer, model):
        raise CodeError(f"{place_of(function)}: {fault}")
    for group in optimizer.param_groups:
        group["scale"] = float(group["lr"]) / train.learning_rate
    return optimizer


def optimizer_fault(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """Return why an optimizer cannot train a model, or ""."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        return f"{type(optimizer).__name__} computes each step's loss itself, which kit does not do"
    own = set(map(id, model.parameters()))
    if not any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
        return "the optimizer has no parameter of the model"
    return ""


def own_schedule(train: Train) -> Callable[[float], float] | None:
    """Return the user's own schedule, if any: a function from the share done to the rate."""
    function = own_function(train, "schedule")
    if function is None:
        return None
    refuse_both("schedule", train)

    def rate(done: float) -> float:
        with blamed(place_of(function)):
            factor = float(function(done))
        if not -ROUNDING < factor < math.inf:
            what = f"it returns {factor:g} after the share {done:.3g}, not a factor from 0 on"
            raise CodeError(f"{place_of(function)}: {what}")
        return train.learning_rate * max(factor, 0.0)

    return rate


def own_function(train: Train, name: str) -> Callable[..., Any] | None:
    """Return a function from the module of the custom model, if it has one."""
    return find_optional(train.model, name) if is_own(train.model) else None


def refuse_both(key: str, train: Train) -> None:
    """Raise JobError if the job has a key that a custom function replaces."""
    recipe = recipe_of(train.model, train.options)
    chosen = {getattr(recipe, key), optimizer_of(train.model, train.learning_rate)}
    if getattr(train, key) not in chosen:
        function = place_of(own_function(train, key))
        raise JobError(f"train.{key}: {function} has a function for it; leave one of them out")


def answers(train: Train) -> Callable[[Any], list[Any]]:
    """Return the function from a batch of outputs to a JSON value for each sample.

    Raises CodeError if the user's module has none.
    """
    function = own_function(train, "answer")
    if function is None:
        build = find(train.model)
        what = "for a server, its module needs a function answer(outputs)"
        raise CodeError(f"{place_of(build)}: {what}, which returns a list of JSON values")

    def checked(outputs: Any) -> list[Any]:
        with blamed(place_of(function)):
            found = function(outputs)
            found = found.tolist() if isinstance(found, Tensor) else list(found)
            json.dumps(found, allow_nan=False)
        return found

    return checked
