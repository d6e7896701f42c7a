"""The job file, read and checked. Standard library only: the launcher uses it before torch."""

import json
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

MEANING: Any = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


class JobError(Exception):
    """A mistake in the job file; the message names the file and the key."""


def at_least(least: float, default: Any = MISSING) -> Any:
    """A field that takes a number from `least` on; without it, from 0 on."""
    return field(default=default, metadata={"least": least})


@dataclass(frozen=True, kw_only=True)
class Train:
    """What is trained and how."""

    dataset: Literal["digits", "mnist", "cifar10", "folder", "text"]
    path: str = ""  # Of folder and text, below the data folder.
    image_size: int = at_least(8, 32)  # Pixels a side to which the images of a folder are brought.
    context: int = at_least(8, 64)  # Characters of a sample of text.
    model: Literal["cnn", "lenet", "resnet18", "airbench", "gpt"]
    epochs: int = at_least(1)  # Passes over the training samples.
    batch_size: int = at_least(1)  # Per process and micro-step; x world size x accumulation: all.
    accumulation: int = at_least(1, 1)  # Micro-steps whose gradients make one optimizer step.
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float  # The highest, for the global batch; never scaled behind the user's back.
    weight_decay: float = 0.0  # L2 penalty, as the optimizer defines it.
    schedule: Literal["constant", "cosine", "triangle"] = "cosine"
    label_smoothing: float = 0.0  # Share of the target that goes to all classes evenly.
    ema: bool = False  # Whether a moving average of the weights is what is evaluated and kept.
    flip_at_test: bool = False  # Whether test images are also looked at in a mirror.
    compile: bool = False  # Whether torch.compile makes the model's code.
    seed: int = 0  # Of the split, the initial weights, the samples' order and their augmentation.
    on_nan: Literal["stop", "skip"] = "stop"  # What a loss that is not finite does.
    # Of the model's arithmetic; auto: what the oldest GPU is fast in. Weights are float32.
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    balance: Literal["even", "auto"] = "even"  # Of work; auto: by the speed each rank is seen at.


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How the ranks' work is brought together."""

    mode: Literal["every_step", "local_sgd", "diloco"] = "every_step"
    every_steps: int = at_least(1, 64)  # Steps of its own that a rank does between two exchanges.
    warm_up_steps: int = at_least(0, 100)  # Steps with an exchange each before those begin.
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    overlap: bool = False  # Whether such an exchange goes on during the next steps of their own.
    bucket_mib: int = at_least(1, 25)  # Gradients that are sent together, MiB.
    static_graph: bool = False  # Whether every step uses every parameter, in the same way.
    # Seconds for any exchange. The defaults, 30 minutes of gloo and 10 of NCCL, are how long a
    # silent host would hold up the others; the longest honest wait is for a checkpoint's fsync.
    timeout: int = at_least(1, 60)


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
    """Read the job file of a built-in training; raises JobError."""
    try:
        return _job(json.loads(path.read_text()))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; KIT_JOB must name the job file") from error
    except ValueError as error:
        raise JobError(f"{path}: is not JSON: {error}") from error
    except JobError as error:
        raise JobError(f"{path}: {error}") from None


def _job(content: Any) -> TrainJob:
    if not isinstance(content, dict):
        raise JobError("must be an object with the keys name and train")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise JobError(f"name: must be a text of at least one character, is {json.dumps(name)}")
    job = TrainJob(name, *(_section(content, kind) for kind in SECTIONS))
    _require_fit(job.train, job.exchange)
    return job


def _section(content: dict[str, Any], kind: Any) -> Any:
    """Read the object whose key is the dataclass's name in small letters; raises JobError."""
    section = kind.__name__.lower()
    given = content.get(section, {})
    if not isinstance(given, dict):
        raise JobError(f"{section}: must be an object, is {json.dumps(given)}")
    values = {}
    for each in fields(kind):
        key, words = f"{section}.{each.name}", get_args(each.type)
        meaning = " or ".join(words) or MEANING[each.type]
        if each.name not in given:
            if each.default is MISSING:
                raise JobError(f"{key}: is missing; it must be {meaning}")
            continue
        value = given[each.name]
        # The very type: in Python a bool is an int too. A float may be written as a whole number.
        whole = type(value) is int and each.type is float
        fits = value in words if words else type(value) is each.type or whole
        if fits and each.type in (int, float):
            least = each.metadata.get("least", 0)
            meaning += f" of at least {least}"
            # Written so that NaN, which JSON as Python reads it has, is refused too.
            fits = least <= value < float("inf")
        if not fits:
            raise JobError(f"{key}: must be {meaning}, is {json.dumps(value)}")
        values[each.name] = float(value) if each.type is float else value
    for name in given:
        if name not in values:
            raise JobError(f"{section}.{name}: is not a key of the job file")
    return kind(**values)


def _require_fit(train: Train, exchange: Exchange) -> None:
    """Check what can not be had together; raises JobError."""
    if (train.dataset == "text") != (train.model == "gpt"):
        raise JobError(f"train.model: {train.model} can not read {train.dataset}; gpt reads text")
    # 8x8 pixels: nothing is left after lenet's two 5x5 convolutions, and resnet18 comes down to a
    # single pixel, of which BatchNorm can not train on one sample.
    if train.dataset == "digits" and train.model != "cnn":
        raise JobError(f"train.model: {train.model} is too deep for digits; use cnn")
    if (train.dataset in {"folder", "text"}) != bool(train.path):
        raise JobError("train.path: must say where a folder or a text is, and nothing else has one")
    if train.image_size != 32 and train.model in {"lenet", "airbench"}:
        raise JobError(f"train.image_size: {train.model} takes images of 32 pixels a side")
    if train.model == "airbench" and train.dataset == "mnist":
        raise JobError("train.model: airbench takes images in colour; use resnet18")
    if train.flip_at_test and train.dataset not in {"cifar10", "folder"}:
        raise JobError(f"train.flip_at_test: mirrored, {train.dataset} is something else")
    if exchange.static_graph and train.accumulation > 1:
        raise JobError("exchange.static_graph: torch can not, with train.accumulation; leave one")
    if exchange.mode != "every_step" and (exchange.compression == "powersgd" or train.ema):
        raise JobError(f"exchange.mode: {exchange.mode} goes with neither powersgd nor train.ema")
