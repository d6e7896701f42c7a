"""A checkpoint's model, rebuilt on a device to answer batches.

Shapes: N samples of a batch, C channels, S pixels a side, T characters, K classes.
"""

import io
import pickle
import zipfile
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.checkpoints.format import Saved, State
from trainer.checkpoints.manifest import UnusableError
from trainer.contract import keys, rules
from trainer.contract.job import Train
from trainer.contract.models import input_side, of_torchvision
from trainer.core.job import JobError
from trainer.core.models import build_model, flip_scores
from trainer.core.precision import autocast, fastest
from trainer.data.load import CIFAR10, LARGEST, STATISTICS
from trainer.data.samples import DataSet, Samples
from trainer.serve.kind import Array, Kind

SHAPES = {
    "digits": (1, 8),
    "mnist": (1, 28),
    "fashion_mnist": (1, 28),
    "cifar10": (3, 32),
    "cifar100": (3, 32),
}


LARGEST_SIDE = 1024  # As of `image_size`: what a checkpoint says must not take all memory.


class Content:
    """The content of a checkpoint, on the CPU."""

    def __init__(self, saved: Saved) -> None:
        """Raises UnusableError where there is something that can not be served."""
        manifest = saved.content
        try:
            job, serving = manifest["job"], manifest.get("serving", {})
            self.train = read_train(job)
            require_stored(saved.state)
            self.weights = weights(saved.load(), averaged=bool(job["ema"]))
            self.wish = str(serving.get("precision", "auto"))
            self.flip = bool(serving.get("flip_at_test", False))
            self.kind = self._kind(serving.get("labels", []))
            self.input = stand_in(self.kind, serving.get("input"))
        except pickle.UnpicklingError as error:
            raise UnusableError("it holds more than tensors and plain values") from error
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RuntimeError,
            EOFError,
        ) as error:
            raise UnusableError(f"it is not of this trainer ({ascii(error)[:200]})") from error

    def _kind(self, labels: list[str]) -> Kind:
        train, name = self.train, self.train.dataset
        if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
            raise UnusableError("it is not of this trainer (its labels are no list of texts)")
        # The scores' layer is the last, in SqueezeNet a convolution; of gpt, the embedding serves
        # at both ends.
        layers = [weight for weight in self.weights.values() if weight.ndim in (2, 4)]
        if not layers:
            raise UnusableError("none of its weights has two or four dimensions: it has no classes")
        classes = len(self.weights.get("characters.weight", layers[-1]))
        if name == "text" and len(labels) != classes:
            raise UnusableError("it does not say its characters: train it on with this trainer")
        # Checkpoints from before labels were kept.
        usual = {"cifar10": CIFAR10, "folder": tuple(f"class {n}" for n in range(classes))}
        names = tuple(labels) or usual.get(name, tuple("0123456789"))
        "".join(names).encode()  # UnicodeEncodeError is a ValueError: no answer could have them.
        channels, side = SHAPES.get(name, (3, train.image_size))
        shape = (train.context,) if name == "text" else (channels, side, side)
        return Kind(name, train.model, shape, names[:classes], LARGEST.get(name, 255))


def read_train(job: dict[str, Any]) -> Train:
    """Return a job's keys that decide about its model, checked; raises UnusableError."""
    known = {each.name: each for each in fields(Train)}
    values = {name: job[name] for name in ("dataset", "path", "image_size", "context", "model")}
    for name, value in values.items():
        if fault := keys.fault(Train, known[name], value):
            raise UnusableError(f"it is not of this trainer (train.{name}: {fault[0]})")
    named = {f"train.{name}": value for name, value in values.items()}
    for problem in rules.problems(named, ()):
        raise UnusableError(f"it is not of this trainer (train.{problem.key}: {problem.what})")
    return Train(epochs=1, batch_size=1, learning_rate=0, **values)


def require_stored(state: bytes) -> None:
    """Raise UnusableError where a file would grow when it is read, as torch's own never do."""
    try:
        with zipfile.ZipFile(io.BytesIO(state)) as archive:
            if sum(each.file_size for each in archive.infolist()) > len(state):
                raise UnusableError("it is compressed, which torch.save never does")
    except zipfile.BadZipFile as error:
        raise UnusableError(f"it is not of this trainer ({error})") from error


def weights(state: State, *, averaged: bool) -> dict[str, Tensor]:
    """The weights that count: where the job has a moving average of them, that."""
    prefix = "average." if averaged else ""
    found = state["average" if averaged else "model"]
    if not all(isinstance(value, Tensor) for value in found.values()):
        raise UnusableError("it is not of this trainer (some of its weights are no tensors)")
    return {name.removeprefix(prefix): value for name, value in found.items()}


def require_types(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Raise UnusableError where a weight would be converted without a word."""
    for name, own in model.state_dict().items():
        if name in found and found[name].dtype != own.dtype:
            types = f"{found[name].dtype}, not {own.dtype}"
            raise UnusableError(f"its weight {name} is of type {types}")


class Model:
    """A checkpoint's model on one device."""

    def __init__(self, content: Content, device: torch.device) -> None:
        """Raises UnusableError where the weights are not the model's."""
        self.kind, self.device = content.kind, device
        data = content.input
        try:
            model = build_model(content.train, data)
            require_types(model, content.weights)
            model.load_state_dict(content.weights)
        except (JobError, ImportError) as error:
            raise UnusableError(f"its model can not be built: {error}") from error
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UnusableError(f"its weights are not {content.kind.model}'s: {reason}") from error
        model = model.to(device).eval()
        self._forward: Any = partial(flip_scores, model) if content.flip else model
        self._data = data.to(device)
        self.precision = precision(content.wish, device)

    @torch.inference_mode()
    def scores(self, values: list[Array]) -> Array:
        """[N, K] float32 of N samples, float32 [C, S, S] or int64 [up to T]; of text, at its end.

        Those of pictures are probabilities.
        """
        if not self.kind.text:
            found = self._run(torch.from_numpy(np.stack(values)))
            return functional.softmax(found, dim=1).cpu().numpy()
        lengths = torch.tensor([len(value) for value in values])
        padded = torch.zeros(len(values), int(lengths.max()), dtype=torch.int64)
        for row, value in zip(padded, values, strict=True):
            row[: len(value)] = torch.from_numpy(value)
        # No character sees those behind it: what the rows are filled up with changes nothing.
        found = self._run(padded)[torch.arange(len(values)), :, lengths - 1]
        return found.cpu().numpy()

    def _run(self, batch: Tensor) -> Tensor:
        if self.device.type == "cuda":  # From pinned memory, beside what the GPU still does.
            batch = batch.pin_memory().to(self.device, non_blocking=True)
        with autocast(self.precision, self.device):
            found: Tensor = self._forward(self._data.prepared(batch))
        return found.float()

    def warm_up(self, size: int) -> None:
        """Answer the smallest and the largest batch: the first of a kind takes the longest."""
        shape, text = self.kind.shape, self.kind.text
        sample = np.zeros(shape, np.int64 if text else np.float32)
        for count in (1, size):
            if not np.isfinite(self.scores([sample] * count)).all():
                raise UnusableError("its answers are not numbers: the training had diverged")


def stand_in(kind: Kind, description: dict[str, Any] | None = None) -> DataSet:
    """As much of a data set as it takes to build a model and to prepare its inputs.

    `description` is that of the checkpoint; those from before have none.
    """
    if kind.text:
        empty = Samples(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1))
        return DataSet(empty, empty, torch.zeros(1), torch.ones(1), len(kind.labels))
    figures = STATISTICS[kind.dataset]
    mean, deviation = (torch.tensor(each).view(-1, 1, 1) * kind.largest for each in figures)
    # airbench takes its first filters from images: those of the checkpoint replace them.
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, *kind.shape), generator=draw, dtype=torch.uint8)
    samples = Samples(images, torch.zeros(2, dtype=torch.int64))
    side = input_side(kind.model, kind.shape[-1]) if of_torchvision(kind.model) else 0
    if description:
        mean, deviation = (figure(description[name], mean) for name in ("mean", "deviation"))
        side = int(description["side"])
        if not 0 <= side <= LARGEST_SIDE:
            raise ValueError(f"its inputs have {side} pixels a side")
    return DataSet(samples, samples, mean, deviation, len(kind.labels), side=side)


def figure(values: Any, usual: Tensor) -> Tensor:
    """Read a figure of each channel, [C, 1, 1]; raises ValueError or TypeError."""
    found = torch.tensor(values, dtype=torch.float32).view_as(usual)
    if not torch.isfinite(found).all():
        raise ValueError("a figure of its input is not finite")
    return found


def precision(wish: str, device: torch.device) -> str:
    """Return the job's precision or, for auto, the fastest of this GPU; fp32 on CPUs."""
    if device.type == "cpu":
        return "fp32"
    capability = torch.cuda.get_device_capability(device)
    return fastest(capability) if wish == "auto" else wish


def devices(count: int) -> list[torch.device]:
    """As many devices as there are to be replicas: GPUs as far as there are any, else the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", n) if n < gpus else torch.device("cpu") for n in range(count)]
