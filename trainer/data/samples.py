"""Samples and data sets in memory; images of a folder, decoded as needed, are in images.py.

Shapes: N samples, C channels, S pixels a side, T characters or tokens. Images are uint8 until they
are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from trainer.data.shards import permutation, split

if TYPE_CHECKING:
    from trainer.data.pictures import View


class DataError(Exception):
    """A file has invalid content; the message has its name."""


class DamagedError(DataError):
    """Files whose content cannot be decoded: a retry does not help."""


@dataclass(frozen=True)
class Samples:
    """Inputs and labels, in memory."""

    inputs: Tensor  # uint8 [N, C, S, S] or, of text, int64 [N, T].
    labels: Tensor  # int64 [N] or, of text, [N, T]; 0 to classes - 1.

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Self:
        """Return the samples on another device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    @property
    def paths(self) -> list[Path]:
        """The files of samples that are not in memory."""
        return []

    @property
    def content(self) -> bytes:
        """A hash of the data that are not in memory and not in `paths`."""
        return b""

    @property
    def mapped(self) -> list[Path]:
        """The files with many samples each, whose names may differ between hosts."""
        return []

    @property
    def numbers(self) -> int:
        """The size of the range of sample numbers in an epoch; N, unless samples have copies."""
        return len(self)

    def order(self, seed: int, epoch: int) -> Tensor:
        """The order of an epoch: int64 [N], each sample once."""
        return permutation(len(self), seed, epoch)

    def grouped(self, batch: Tensor) -> Tensor:
        """A global batch int64 [n] in the order in which the ranks divide it."""
        return batch

    def expect(self, batches: Iterable[Tensor], epoch: int | None = None) -> None:
        """Begin to read samples, int64 [n] of each batch; those in memory need no reading.

        `epoch` is the training epoch for which they are augmented.
        """

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples `indices`, int64 [n] on the CPU, on a device."""
        own = indices.to(self.labels.device)
        return self.inputs[own].to(device), self.labels[own].to(device)

    def hold_out(self, share: float, seed: int, like: Self) -> tuple[Self, Self]:
        """Split off a share of each class, chosen by the seed, to be read in the way of `like`.

        Return the rest, and that part.
        """
        rest, held = split(self.labels, share, seed)
        return self.chosen(rest, self), self.chosen(held, like)

    def chosen(self, indices: Tensor, like: Self) -> Self:
        """The samples `indices`, int64 [n], read in the way of `like`."""
        return replace(like, inputs=self.inputs[indices], labels=self.labels[indices])


@dataclass(frozen=True)
class DataSet:
    """A data set with its parts and its statistics."""

    train: Samples
    test: Samples
    mean: Tensor  # float32 [C, 1, 1], in units of the stored images.
    deviation: Tensor  # float32 [C, 1, 1], in units of the stored images.
    classes: int
    padding: int = 0  # Maximum shift of training images; 0: no augmentation by crops.py.
    labels: tuple[str, ...] = ()  # Names of the classes; for text, the characters.
    side: int = 0
    """Minimum side of inputs, in pixels, of three channels; 0: images are used unchanged."""
    view: View | None = None
    """The conversion of test images to inputs, if they are not scaled to the training's size."""
    tokenizer: str = ""  # Of a text as tokens, the content of its tokenizer.json.
    end: int | None = None  # The token with which each document begins, if there is one.
    bytes_per_token: float | None = None  # Of the test part of a text, in UTF-8.
    validation: Samples | None = None
    """The samples that select the best checkpoint, if these are not the test."""

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        names = ("train", "test", "mean", "deviation", "validation")
        there = {name: each for name in names if (each := getattr(self, name)) is not None}
        return replace(self, **{name: each.to(device) for name, each in there.items()})

    @property
    def parts(self) -> tuple[Samples, ...]:
        """The training samples, those of the validation if there is one, and the test samples."""
        return tuple(each for each in (self.train, self.validation, self.test) if each is not None)

    @property
    def measured(self) -> Samples:
        """The samples that are evaluated after each epoch."""
        return self.test if self.validation is None else self.validation

    @property
    def text(self) -> bool:
        """Whether the samples are texts, which have a label for each character."""
        return self.train.labels.ndim > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample's input."""
        return tuple(self.train.inputs.shape[1:])

    def preparation(self) -> dict[str, Any]:
        """Describe the preparation of images by `prepared`, as JSON values."""
        figures = {"mean": self.mean, "deviation": self.deviation}
        return {
            **{name: each.flatten().tolist() for name, each in figures.items()},
            "side": self.side,
            **({"view": asdict(self.view)} if self.view else {}),
        }

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return a model's input: images as float32 of mean 0 and deviation 1, text unchanged.

        Models of torchvision need three channels, and some a minimum size: a single channel is
        repeated, and small images are enlarged.
        """
        if inputs.ndim != 4:
            return inputs
        images = (inputs.float() - self.mean) / self.deviation
        if not self.side:
            return images
        images = images.expand(-1, 3, -1, -1)
        if images.shape[-1] < self.side:
            images = functional.interpolate(images, (self.side, self.side), mode="bilinear")
        return images
