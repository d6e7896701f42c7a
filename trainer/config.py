"""The job file, read and checked. Standard library only: the launcher uses it before torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

DATASETS = ("digits", "mnist", "cifar10")
MODELS = ("cnn", "lenet", "resnet18")
OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine")


class JobError(Exception):
    """A mistake in the job file; the message names the file and the key."""


@dataclass(frozen=True)
class Train:
    """What is trained and how."""

    dataset: str
    """One of `DATASETS`."""
    model: str
    """One of `MODELS`."""
    epochs: int
    """Passes over the training samples."""
    batch_size: int
    """Samples per process and micro-step; the global batch is this x world size x accumulation."""
    accumulation: int
    """Micro-steps whose gradients make one optimizer step."""
    optimizer: str
    """One of `OPTIMIZERS`."""
    learning_rate: float
    """Of the first step, for the global batch; it is never scaled behind the user's back."""
    weight_decay: float
    """L2 penalty, as the optimizer defines it."""
    schedule: str
    """One of `SCHEDULES`; cosine falls to 0 at the end of the last epoch."""
    seed: int
    """Decides the split, the initial weights, the order of the samples and their augmentation."""


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and how many stay."""

    every_epochs: int
    """Epochs between two checkpoints."""
    keep: int
    """Newest checkpoints that are kept on each host."""
    shared: bool
    """Whether all hosts see one folder, so that only one process writes."""
    asynchronous: bool
    """Whether a thread writes while the training goes on."""


@dataclass(frozen=True)
class TrainJob:
    """A job of the built-in training."""

    name: str
    train: Train
    checkpoint: Checkpoint


def load_job(path: Path) -> TrainJob:
    """Read the job file of a built-in training.

    Raises:
        JobError: The file can not be read, or a key is missing, unknown or wrong.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; KIT_JOB must name the job file") from error
    except ValueError as error:
        raise JobError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise JobError(f"{path}: must be an object with the keys name, train and checkpoint")
    top = _Section(path, "", content)
    job = TrainJob(
        name=top.text("name"),
        train=_train(top.section("train")),
        checkpoint=_checkpoint(top.section("checkpoint")),
    )
    # 8x8 pixels: nothing is left after lenet's two 5x5 convolutions, and resnet18 comes down to a
    # single pixel, of which BatchNorm can not train on one sample.
    if job.train.dataset == "digits" and job.train.model != "cnn":
        raise JobError(f"{path}: train.model: {job.train.model} is too deep for digits; use cnn")
    return job


def _train(section: _Section) -> Train:
    result = Train(
        dataset=section.choice("dataset", DATASETS),
        model=section.choice("model", MODELS),
        epochs=section.whole("epochs", 1),
        batch_size=section.whole("batch_size", 1),
        accumulation=section.whole("accumulation", 1),
        optimizer=section.choice("optimizer", OPTIMIZERS),
        learning_rate=section.number("learning_rate"),
        weight_decay=section.number("weight_decay"),
        schedule=section.choice("schedule", SCHEDULES),
        seed=section.whole("seed", 0),
    )
    section.nothing_else()
    return result


def _checkpoint(section: _Section) -> Checkpoint:
    result = Checkpoint(
        every_epochs=section.whole("every_epochs", 1),
        keep=section.whole("keep", 1),
        shared=section.flag("shared"),
        asynchronous=section.flag("asynchronous"),
    )
    section.nothing_else()
    return result


class _Section:
    """One object of the file, whose values are taken one by one."""

    def __init__(self, file: Path, prefix: str, content: dict[str, Any]) -> None:
        self._file = file
        self._prefix = prefix
        self._content = dict(content)

    def section(self, key: str) -> _Section:
        value = self._take(key, dict, "an object")
        return _Section(self._file, f"{self._prefix}{key}.", value)

    def text(self, key: str) -> str:
        value: str = self._take(key, str, "a text")
        if not value:
            self._wrong(key, "a text of at least one character", value)
        return value

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        value: str = self._take(key, str, " or ".join(known))
        if value not in known:
            self._wrong(key, " or ".join(known), value)
        return value

    def whole(self, key: str, least: int) -> int:
        value: int = self._take(key, int, "a whole number")
        if value < least:
            self._wrong(key, f"a whole number of at least {least}", value)
        return value

    def number(self, key: str) -> float:
        value = float(self._take(key, (int, float), "a number"))
        # Written so that NaN, which JSON as Python reads it has, is refused too.
        if not 0 <= value < float("inf"):
            self._wrong(key, "a number of at least 0", value)
        return value

    def flag(self, key: str) -> bool:
        value: bool = self._take(key, bool, "true or false")
        return value

    def nothing_else(self) -> None:
        for key in self._content:
            raise JobError(f"{self._file}: {self._prefix}{key}: is not a key of the job file")

    def _take(self, key: str, kind: type | tuple[type, ...], meaning: str) -> Any:
        if key not in self._content:
            raise JobError(f"{self._file}: {self._prefix}{key}: is missing; it must be {meaning}")
        value = self._content.pop(key)
        # In Python a bool is an int too; in a job file it is not.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self._wrong(key, meaning, value)
        return value

    def _wrong(self, key: str, meaning: str, value: object) -> None:
        raise JobError(
            f"{self._file}: {self._prefix}{key}: must be {meaning}, is {json.dumps(value)}"
        )
