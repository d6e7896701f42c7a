"""The job file, read and checked. Standard library only: the launcher uses it before torch."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
TYPES: Any = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
}


class JobError(Exception):
    """A mistake in the job file; the message names the file and the key."""


def one_of(*known: str, default: Any = MISSING) -> Any:
    """A field that takes one of a few words."""
    return field(default=default, metadata={"known": known})


def at_least(least: float, default: Any = MISSING) -> Any:
    """A field that takes a number from `least` on."""
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, kw_only=True)
class Train:
    """What is trained and how."""

    dataset: str = one_of("digits", "mnist", "cifar10", "folder", "text")
    path: str = ""  # Of folder and text, below the data folder.
    image_size: int = at_least(8, 32)  # Pixels a side to which the images of a folder are brought.
    context: int = at_least(8, 64)  # Characters of a sample of text.
    model: str = one_of("cnn", "lenet", "resnet18", "airbench", "gpt")
    epochs: int = at_least(1)  # Passes over the training samples.
    batch_size: int = at_least(1)
    """Samples per process and micro-step; the global batch is this x world size x accumulation."""
    accumulation: int = at_least(1, 1)  # Micro-steps whose gradients make one optimizer step.
    optimizer: str = one_of("sgd", "adam", "adamw", default="sgd")
    learning_rate: float
    """The highest, for the global batch; it is never scaled behind the user's back."""
    weight_decay: float = 0.0  # L2 penalty, as the optimizer defines it.
    schedule: str = one_of("constant", "cosine", "triangle", default="cosine")
    label_smoothing: float = 0.0  # Share of the target that goes to all classes evenly.
    ema: bool = False  # Whether a moving average of the weights is what is evaluated and kept.
    flip_at_test: bool = False  # Whether test images are also looked at in a mirror.
    compile: bool = False  # Whether torch.compile makes the model's code.
    seed: int = 0
    """Decides the split, the initial weights, the order of the samples and their augmentation."""
    on_nan: str = one_of("stop", "skip", default="stop")  # What a loss that is not finite does.
    precision: str = one_of("auto", "fp32", "bf16", "fp16", default="auto")
    """Of the model's arithmetic; auto: what the oldest GPU is fast in. Weights are float32."""
    balance: str = one_of("even", "auto", default="even")
    """How a global batch is divided: evenly, or by the speed that each rank is seen to have."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How the ranks' work is brought together."""

    mode: str = one_of("every_step", "local_sgd", "diloco", default="every_step")
    every_steps: int = at_least(1, 64)  # Steps of its own that a rank does between two exchanges.
    warm_up_steps: int = at_least(0, 100)  # Steps with an exchange each before those begin.
    compression: str = one_of("none", "fp16", "bf16", "powersgd", default="none")
    overlap: bool = False  # Whether such an exchange goes on during the next steps of their own.
    bucket_mib: int = at_least(1, 25)  # Gradients that are sent together, MiB.
    static_graph: bool = False  # Whether every step uses every parameter, in the same way.
    timeout: int = at_least(1, 60)
    """Seconds for any exchange. The defaults, 30 minutes of gloo and 10 of NCCL, are how long a
    silent host would hold up the others; the longest honest wait is for a checkpoint's fsync."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When checkpoints are written and how many stay."""

    every_epochs: int = at_least(1, 1)  # Epochs between two checkpoints.
    keep: int = at_least(1, 3)  # Newest checkpoints that are kept on each host.
    shared: bool = False  # Whether all hosts see one folder, so that only one process writes.
    asynchronous: bool = True  # Whether a thread writes while the training goes on.


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where the figures can be read while the training runs."""

    port: int = 0  # Of the Prometheus endpoint of every host's first process; 0: none.


@dataclass(frozen=True)
class TrainJob:
    """A job of the built-in training."""

    name: str
    train: Train
    exchange: Exchange
    checkpoint: Checkpoint
    metrics: Metrics


SECTIONS: Any = (Train, Exchange, Checkpoint, Metrics)


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
        raise JobError(f"{path}: must be an object with the keys name and train")
    try:
        name = _take(content, "name", str, "a text of at least one character")
        if not name:
            _wrong("name", "a text of at least one character", name)
        job = TrainJob(name, *(_section(content, kind) for kind in SECTIONS))
        _require_fit(job)
    except JobError as error:
        raise JobError(f"{path}: {error}") from None
    return job


def _require_fit(job: TrainJob) -> None:
    """Check what can not be had together; raises JobError."""
    train, exchange = job.train, job.exchange
    if (train.dataset == "text") != (train.model == "gpt"):
        raise JobError(f"train.model: {train.model} can not read {train.dataset}; gpt reads text")
    # 8x8 pixels: nothing is left after lenet's two 5x5 convolutions, and resnet18 comes down to a
    # single pixel, of which BatchNorm can not train on one sample.
    if train.dataset == "digits" and train.model != "cnn":
        raise JobError(f"train.model: {train.model} is too deep for digits; use cnn")
    if (train.dataset in {"folder", "text"}) != bool(train.path):
        raise JobError("train.path: must say where a folder or a text is, and nothing else has one")
    side = train.image_size if train.dataset == "folder" else 32
    if train.model in {"lenet", "airbench"} and side != 32:
        raise JobError(f"train.image_size: {train.model} takes images of 32 pixels a side")
    if train.model == "airbench" and train.dataset == "mnist":
        raise JobError("train.model: airbench takes images in colour; use resnet18")
    if train.flip_at_test and train.dataset not in {"cifar10", "folder"}:
        raise JobError(f"train.flip_at_test: mirrored, {train.dataset} is something else")
    if exchange.static_graph and train.accumulation > 1:
        raise JobError("exchange.static_graph: torch can not, with train.accumulation; leave one")
    if exchange.mode != "every_step" and (exchange.compression == "powersgd" or train.ema):
        raise JobError(f"exchange.mode: {exchange.mode} goes with neither powersgd nor train.ema")


def _section(content: dict[str, Any], kind: type[T]) -> T:
    """Read the object whose key is the dataclass's name in small letters."""
    prefix = kind.__name__.lower()
    section = dict(_take({prefix: {}, **content}, prefix, dict, "an object"))
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in section and each.default is not MISSING:
            continue
        key, least = f"{prefix}.{each.name}", each.metadata.get("least", 0)
        type_, meaning = TYPES[each.type]
        known = each.metadata.get("known")
        value = _take(section, key, type_, " or ".join(known) if known else meaning)
        if known and value not in known:
            _wrong(key, " or ".join(known), value)
        # Written so that NaN, which JSON as Python reads it has, is refused too.
        if type_ is not str and not least <= value < float("inf"):
            _wrong(key, f"{meaning} of at least {least}", value)
        values[each.name] = float(value) if each.type == "float" else value
    for key in section:
        raise JobError(f"{prefix}.{key}: is not a key of the job file")
    return kind(**values)


def _take(content: dict[str, Any], path: str, kind: Any, meaning: str) -> Any:
    """Take the value of the key that `path` ends with, of the right type."""
    key = path.rpartition(".")[2]
    if key not in content:
        raise JobError(f"{path}: is missing; it must be {meaning}")
    value = content.pop(key)
    # In Python a bool is an int too; in a job file it is not.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        _wrong(path, meaning, value)
    return value


def _wrong(path: str, meaning: str, value: object) -> NoReturn:
    raise JobError(f"{path}: must be {meaning}, is {json.dumps(value)}")
