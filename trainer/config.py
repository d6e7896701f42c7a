"""The job file, read and checked. Standard library only: the launcher uses it before torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

DATASETS = ("digits", "mnist", "cifar10")
MODELS = ("cnn", "lenet", "resnet18")
OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine")
ON_NAN = ("stop", "skip")


T = TypeVar("T")
TYPES: Any = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
}


class JobError(Exception):
    """A mistake in the job file; the message names the file and the key."""


@dataclass(frozen=True)
class Train:
    """What is trained and how."""

    dataset: str = field(metadata={"known": DATASETS})
    """One of `DATASETS`."""
    model: str = field(metadata={"known": MODELS})
    """One of `MODELS`."""
    epochs: int = field(metadata={"least": 1})
    """Passes over the training samples."""
    batch_size: int = field(metadata={"least": 1})
    """Samples per process and micro-step; the global batch is this x world size x accumulation."""
    accumulation: int = field(metadata={"least": 1})
    """Micro-steps whose gradients make one optimizer step."""
    optimizer: str = field(metadata={"known": OPTIMIZERS})
    """One of `OPTIMIZERS`."""
    learning_rate: float
    """Of the first step, for the global batch; it is never scaled behind the user's back."""
    weight_decay: float
    """L2 penalty, as the optimizer defines it."""
    schedule: str = field(metadata={"known": SCHEDULES})
    """One of `SCHEDULES`; cosine falls to 0 at the end of the last epoch."""
    seed: int
    """Decides the split, the initial weights, the order of the samples and their augmentation."""
    on_nan: str = field(metadata={"known": ON_NAN})
    """One of `ON_NAN`: what a loss that is not finite does to the training."""
    path: ClassVar[str] = ""
    image_size: ClassVar[int] = 32
    context: ClassVar[int] = 64


@dataclass(frozen=True)
class Checkpoint:
    """When checkpoints are written and how many stay."""

    every_epochs: int = field(metadata={"least": 1})
    """Epochs between two checkpoints."""
    keep: int = field(metadata={"least": 1})
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
    try:
        name = _take(content, "name", str, "a text of at least one character")
        train, checkpoint = _section(content, Train), _section(content, Checkpoint)
    except JobError as error:
        raise JobError(f"{path}: {error}") from None
    # 8x8 pixels: nothing is left after lenet's two 5x5 convolutions, and resnet18 comes down to a
    # single pixel, of which BatchNorm can not train on one sample.
    if train.dataset == "digits" and train.model != "cnn":
        raise JobError(f"{path}: train.model: {train.model} is too deep for digits; use cnn")
    return TrainJob(name, train, checkpoint)


def _section(content: dict[str, Any], kind: type[T]) -> T:
    """Read the object whose key is the dataclass's name in small letters."""
    prefix = kind.__name__.lower()
    section = dict(_take(content, prefix, dict, "an object"))
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]
        key, least = f"{prefix}.{each.name}", each.metadata.get("least", 0)
        type_, meaning = TYPES[each.type]
        known = each.metadata.get("known")
        value = _take(section, key, type_, " or ".join(known) if known else meaning)
        if known and value not in known:
            _wrong(key, " or ".join(known), value)
        # Written so that NaN, which JSON as Python reads it has, is refused too.
        if not known and not least <= value < float("inf"):
            _wrong(key, f"{meaning} of at least {least}", value)
        values[each.name] = float(value) if each.type == "float" else value
    for key in section:
        raise JobError(f"{prefix}.{key}: is not a key of the job file")
    return kind(**values)


def _take(content: dict[str, Any], path: str, kind: Any, meaning: str) -> Any:
    """Take the value of the key that `path` ends with, not empty and of the right type."""
    key = path.rpartition(".")[2]
    if key not in content:
        raise JobError(f"{path}: is missing; it must be {meaning}")
    value = content.pop(key)
    # In Python a bool is an int too; in a job file it is not.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or value == "":
        _wrong(path, meaning, value)
    return value


def _wrong(path: str, meaning: str, value: object) -> NoReturn:
    raise JobError(f"{path}: must be {meaning}, is {json.dumps(value)}")
