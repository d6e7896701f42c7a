"""The contract of a custom model: the arguments and results of the functions in a user's module.

A job names two functions, `model: mymodel:build` and `dataset: mymodel:data`; the data may also be
one of the trainer's. Functions with the names below are used if the module of the model has them.

    build(settings) -> nn.Module
        The model, with new weights from torch's global generator. It is called with one batch of
        inputs. The server builds it too, with the same `options`, `shape` and `labels`.
    data(settings) -> train, test   or   train, test, labels
        Each part a map-style torch Dataset of pairs (input, target), or a tuple of tensors
        (inputs [N, ...], targets [N, ...]). `labels` are the names of the classes, if any.
    loss(outputs, targets) -> Tensor
        The mean over a batch, [], or the loss of each sample, [N]. Default: cross entropy.
    metrics(outputs, targets) -> dict of Tensors
        By name, the mean over a batch, [], or the value of each sample, [N]. The result is the mean
        over all test samples. `accuracy` is a share; the highest one marks the best checkpoint,
        without it the lowest loss. Default: accuracy if there is no `loss` either.
    optimizer(model, settings) -> torch.optim.Optimizer
        Its groups have their rates for the whole training; the schedule scales them.
    schedule(done) -> float
        The factor of the rates after the share `done` (0 to 1) of all samples.
    answer(outputs) -> list
        For a server: a JSON value for each sample of a batch of outputs, float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The part of the job that the functions of a user's module get."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The job's `options`."""
    shape: tuple[int, ...] = ()
    """The shape of a sample's input, without N; empty before the data are loaded, and for inputs
    that are not a single tensor."""
    labels: tuple[str, ...] = ()
    """Names of the classes; for text, the characters."""
    seed: int = 0
    learning_rate: float = 0.0
    weight_decay: float = 0.0
    folder: Path = Path()
    """The data folder (/data in a container), for `data` only."""
    data_sets: Mapping[str, Path] = field(default_factory=dict)
    """The folders of the job's fetched data sets by name, for `data` only."""
