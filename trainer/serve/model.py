"""A checkpoint's model, rebuilt on a device to answer batches.

Shapes: N samples of a batch, C channels, S pixels a side, T characters, K classes.
"""

import io
import os
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
from trainer.checkpoints.manifest import UnusableError, is_whole
from trainer.contract import keys, rules
from trainer.contract.job import Train
from trainer.contract.models import input_side, of_torchvision
from trainer.contract.own import is_own, options_fault
from trainer.core.compute import autocast, fastest
from trainer.core.job import JobError
from trainer.core.models import build_model, flip_scores
from trainer.custom.code import blamed
from trainer.custom.nested import floated, mapped
from trainer.data.load import CIFAR10
from trainer.data.pictures import FILTERS, View
from trainer.data.samples import DataSet, Samples
from trainer.data.views import LARGEST, STATISTICS
from trainer.parallel.device import usable_gpus
from trainer.serve.kind import Array, Kind
from trainer.serve.own import (
    answer_with,
    has_answer,
    own_kind,
    own_stand_in,
    probe,
    require_named,
    typed,
)
from trainer.text.vocabulary import TokenizerError, Tokens

SHAPES = {
    "digits": (1, 8),
    "mnist": (1, 28),
    "fashion_mnist": (1, 28),
    "cifar10": (3, 32),
    "cifar100": (3, 32),
}


LARGEST_SIDE = 1024  # As for `image_size`: a checkpoint's value must not exhaust the memory.


class Content:
    """The content of a checkpoint, on the CPU."""

    def __init__(self, saved: Saved, own: str = "") -> None:
        """Raises UnusableError if the content cannot be served; `own` is the server's model."""
        manifest = saved.content
        try:
            job, serving = manifest["job"], manifest.get("serving", {})
            self.train = read_train(job, own)
            require_stored(saved.state)
            state = saved.load()
            self.weights = weights(state, averaged=has_average(job))
            self.wish = str(serving.get("precision", "auto"))
            self.flip = bool(serving.get("flip_at_test", False))
            self.kind = self._kind(
                serving.get("labels", []), serving.get("input"), str(state.get("tokenizer", ""))
            )
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
            raise UnusableError(
                f"it was not made by this trainer ({ascii(error)[:200]})"
            ) from error

    def _kind(self, labels: list[str], described: Any, tokenizer: str) -> Kind:
        train, name = self.train, self.train.dataset
        if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
            raise UnusableError("it was not made by this trainer (its labels are no list of texts)")
        if is_own(name):
            return own_kind(train, labels, described)
        # The last layer computes the scores; in SqueezeNet it is a convolution, in gpt it may be
        # the embedding of tokens.
        layers = [weight for weight in self.weights.values() if weight.ndim in (2, 4)]
        if not layers and not is_own(train.model):
            raise UnusableError("none of its weights has two or four dimensions: it has no classes")
        classes = len(labels)
        if not is_own(train.model):
            classes = len(self.weights.get("embedding.weight", layers[-1]))
        if name == "text" and tokenizer:
            require_tokens(tokenizer, classes)
            return Kind(
                name, train.model, (train.context,), (), 255, tokenizer=tokenizer, tokens=classes
            )
        if name == "text" and len(labels) != classes:
            raise UnusableError("it does not say its characters: train it on with this trainer")
        # For old checkpoints, which have no labels.
        usual = {"cifar10": CIFAR10, "folder": tuple(f"class {n}" for n in range(classes))}
        names = tuple(labels) or usual.get(name, tuple("0123456789"))
        "".join(names).encode()  # UnicodeEncodeError, a ValueError: unusable in answers.
        view = read_view(described, View(train.image_size))
        channels, side = SHAPES.get(name, (3, view.side))
        shape = (train.context,) if name == "text" else (channels, side, side)
        return Kind(
            dataset=name,
            model=train.model,
            shape=shape,
            labels=names[:classes],
            largest=LARGEST.get(name, 255),
            resize=view.resize,
            interpolation=view.interpolation,
            answers=is_own(train.model) and has_answer(train),
        )


def has_average(job: dict[str, Any]) -> bool:
    """Whether a moving average of the weights was tested."""
    return bool(job["ema"]) or job.get("ema_decay") is not None


def read_view(described: Any, usual: View) -> View:
    """Return how pictures are prepared, as a checkpoint describes it; raises UnusableError."""
    found = described.get("view") if isinstance(described, dict) else None
    if found is None:  # From an older trainer, or for images of a fixed size.
        return usual
    view = View(**found)
    sides = (view.side, view.resize)
    if not all(is_whole(side) and 0 <= side <= 2 * LARGEST_SIDE for side in sides) or (
        view.side not in range(1, LARGEST_SIDE + 1)
        or view.interpolation not in FILTERS
        or 0 < view.resize < view.side
    ):
        raise UnusableError(f"its pictures cannot be prepared as {ascii(found)[:200]}")
    return view


def require_tokens(tokenizer: str, classes: int) -> None:
    """Raise UnusableError if a tokenizer is damaged or has other tokens than the model."""
    try:
        size = Tokens(tokenizer).size
    except TokenizerError as error:
        raise UnusableError(f"its tokens cannot be read: {error}") from error
    if size != classes:
        raise UnusableError(f"its tokenizer has {size} tokens, its model {classes}")


def read_train(job: dict[str, Any], own: str) -> Train:
    """Return the checked keys of a job that determine its model; raises UnusableError.

    `own` is the server's model, if it is the user's own.
    """
    known = {each.name: each for each in fields(Train)}
    values = {name: job[name] for name in ("dataset", "path", "image_size", "context", "model")}
    require_named(values["model"], own)
    if fault := options_fault(job.get("options") or {}):
        raise UnusableError(f"it was not made by this trainer (train.options: {fault[0]})")
    for name, value in values.items():
        if fault := keys.fault(Train, known[name], value):
            raise UnusableError(f"it was not made by this trainer (train.{name}: {fault[0]})")
    values |= {"options": job["options"]} if job.get("options") else {}
    named = {"train.options": None} | {f"train.{name}": value for name, value in values.items()}
    for problem in rules.problems(named, ()):
        raise UnusableError(
            f"it was not made by this trainer (train.{problem.key}: {problem.what})"
        )
    return Train(epochs=1, batch_size=1, learning_rate=0, **values)


def require_stored(state: bytes) -> None:
    """Raise UnusableError for compressed files, which expand in memory; torch writes none."""
    try:
        with zipfile.ZipFile(io.BytesIO(state)) as archive:
            if sum(each.file_size for each in archive.infolist()) > len(state):
                raise UnusableError("it is compressed, which torch.save never does")
    except zipfile.BadZipFile as error:
        raise UnusableError(f"it was not made by this trainer ({error})") from error


def weights(state: State, *, averaged: bool) -> dict[str, Tensor]:
    """Return the weights or, if the job has one, their moving average."""
    prefix = "average." if averaged else ""
    if "model" not in state:
        fix = "only the last checkpoint of its job has all weights"
        raise UnusableError(f"it has pieces of a divided model; {fix}")
    found = state["average" if averaged else "model"]
    if not all(isinstance(value, Tensor) for value in found.values()):
        raise UnusableError("it was not made by this trainer (some of its weights are no tensors)")
    return {name.removeprefix(prefix): value for name, value in found.items()}


def require_types(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Raise UnusableError if the type of a weight would be converted silently."""
    for name, own in model.state_dict().items():
        if name in found and found[name].dtype != own.dtype:
            types = f"{found[name].dtype}, not {own.dtype}"
            raise UnusableError(f"its weight {name} is of type {types}")


class Model:
    """A checkpoint's model on one device."""

    def __init__(self, content: Content, device: torch.device) -> None:
        """Raises UnusableError if the weights do not fit the model."""
        self.kind, self.device = content.kind, device
        data = content.input
        try:
            model = build_model(content.train, data)
            require_types(model, content.weights)
            model.load_state_dict(content.weights)
        except (JobError, ImportError) as error:
            raise UnusableError(f"its model cannot be built: {error}") from error
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UnusableError(f"its weights are not {content.kind.model}'s: {reason}") from error
        model = model.to(device).eval()
        self._forward: Any = partial(flip_scores, model) if content.flip else model
        self._data = data.to(device)
        self.precision = precision(content.wish, device)
        self._answer = answer_with(content.train) if content.kind.answers else None

    @torch.inference_mode()
    def scores(self, values: list[Array]) -> Any:
        """Scores [N, K] float32 of N samples, float32 [C, S, S] or int64 [up to T].

        Pictures have probabilities; texts have logits of the next character. If a custom function
        answers: a list of its N answers.
        """
        if self._answer:
            found = self._run(torch.from_numpy(np.stack(values)))
            return self._answer(mapped(found, lambda each: each.cpu()), len(values))
        if not self.kind.text:
            found = self._run(torch.from_numpy(np.stack(values)))
            return functional.softmax(found, dim=1).cpu().numpy()
        lengths = torch.tensor([len(value) for value in values])
        padded = torch.zeros(len(values), int(lengths.max()), dtype=torch.int64)
        for row, value in zip(padded, values, strict=True):
            row[: len(value)] = torch.from_numpy(value)
        # Attention is causal, so padding at the end of rows has no effect.
        found = self._run(padded)[torch.arange(len(values)), :, lengths - 1]
        return found.cpu().numpy()

    def _run(self, batch: Tensor) -> Any:
        batch = typed(self.kind, batch) if self.kind.values else batch
        if self.device.type == "cuda":  # From pinned memory, while the GPU computes.
            batch = batch.pin_memory().to(self.device, non_blocking=True)
        with autocast(self.precision, self.device):
            found = self._forward(self._data.prepared(batch))
        return floated(found)

    def warm_up(self, size: int) -> None:
        """Compute the smallest and the largest batch: the first batch of a size is slow."""
        if self._answer:
            self._try(size)
            return
        shape, text = self.kind.shape, self.kind.text
        sample = np.zeros(shape, np.int64 if text else np.float32)
        for count in (1, size):
            if not np.isfinite(self.scores([sample] * count)).all():
                raise UnusableError("its answers are not numbers: the training had diverged")

    def _try(self, size: int) -> None:
        """Answer as `warm_up`; raises UnusableError for a fault in the user's own code."""
        sample = np.zeros(self.kind.shape, np.float32)
        if self.kind.values:
            sample = probe(self.kind, torch.Generator().manual_seed(0))
        try:
            with blamed(f"{self.kind.model}: the model"):
                for count in (1, size):
                    self.scores([sample] * count)
        except JobError as error:
            raise UnusableError(str(error)) from error


def stand_in(kind: Kind, description: dict[str, Any] | None = None) -> DataSet:
    """Return a minimal data set for building a model and preparing its inputs.

    `description` is from the checkpoint; old ones have none.
    """
    if kind.values:
        return own_stand_in(kind)
    if kind.text:
        empty = Samples(torch.zeros(1, *kind.shape, dtype=torch.int64), torch.zeros(1, 1))
        return DataSet(
            *(empty, empty, torch.zeros(1), torch.ones(1), kind.classes),
            labels=kind.labels,
            tokenizer=kind.tokenizer,
            end=kind.vocabulary.start if kind.tokenizer else None,
        )
    figures = STATISTICS[kind.dataset]
    mean, deviation = (torch.tensor(each).view(-1, 1, 1) * kind.largest for each in figures)
    # airbench computes its first filters from images; the checkpoint's filters replace them.
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, *kind.shape), generator=draw, dtype=torch.uint8)
    samples = Samples(images, torch.zeros(2, dtype=torch.int64))
    side = input_side(kind.model, kind.shape[-1]) if of_torchvision(kind.model) else 0
    if description:
        mean, deviation = (figure(description[name], mean) for name in ("mean", "deviation"))
        side = int(description["side"])
        if not 0 <= side <= LARGEST_SIDE:
            raise ValueError(f"its inputs have {side} pixels a side")
    classes = len(kind.labels)
    return DataSet(samples, samples, mean, deviation, classes, labels=kind.labels, side=side)


def figure(values: Any, usual: Tensor) -> Tensor:
    """Read a value for each channel, [C, 1, 1]; raises ValueError or TypeError."""
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
    """Return a device for each replica: GPUs if there are any, otherwise the CPU."""
    gpus = usable_gpus(os.environ)
    return [torch.device("cuda", n) if n < gpus else torch.device("cpu") for n in range(count)]
