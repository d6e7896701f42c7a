"""Samples and data sets: tensors in memory, but for images of a folder, decoded as needed.

Shapes: N samples, C channels, S pixels a side, T characters. Images are uint8 until they are used.
"""

from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

DECODERS = futures.ThreadPoolExecutor(8)  # Of images; Pillow lets other threads run meanwhile.


class DataError(Exception):
    """A file is not what its name promises; the message names it."""


@dataclass(frozen=True)
class Samples:
    """Inputs and what a model should make of them, in memory."""

    inputs: Tensor  # uint8 [N, C, S, S] or, of text, int64 [N, T].
    labels: Tensor  # int64 [N] or, of text, [N, T]; 0 to classes - 1.

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def prefetch(self, indices: Tensor) -> None:
        """Begin to read samples, int64 [n]; those in memory need none."""

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples `indices`, int64 [n] on the CPU, on a device."""
        own = indices.to(self.labels.device)
        return self.inputs[own].to(device), self.labels[own].to(device)


@dataclass(frozen=True)
class ImageFiles(Samples):
    """Images that stay in files until taken, so that any number fits; `inputs` have none."""

    files: list[Path]
    ahead: dict[int, futures.Future[Tensor]] = field(default_factory=dict)  # Till taken.

    def prefetch(self, indices: Tensor) -> None:
        """Begin to decode samples, int64 [n]."""
        for index in set(indices.tolist()) - self.ahead.keys():
            self.ahead[index] = DECODERS.submit(decode, self.files[index], self.inputs.shape[-1])

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As of `Samples`; raises DataError where a file can not be decoded."""
        self.prefetch(indices)
        images = [self.ahead.pop(index).result() for index in indices.tolist()]
        return torch.stack(images).to(device), self.labels[indices].to(device)


def decode(file: Path, side: int) -> Tensor:
    """uint8 [3, S, S]: the shorter side scaled to S, the longer one cut; raises DataError."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            # JPEG can be decoded at a fraction of its size, in a fraction of the time.
            image.draft("RGB", (2 * side, 2 * side))
            pixels = np.array(ImageOps.fit(image.convert("RGB"), (side, side)))
    except Exception as error:  # Which, depends on the format.
        raise DataError(f"{file} can not be decoded ({error}); replace or delete it") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


@dataclass(frozen=True)
class DataSet:
    """A data set with its split and its figures."""

    train: Samples
    test: Samples
    mean: Tensor  # float32 [C, 1, 1], in units of the stored images.
    deviation: Tensor  # float32 [C, 1, 1], in units of the stored images.
    classes: int
    padding: int = 0  # Pixels by which training images are shifted; 0: nor are they mirrored.
    labels: tuple[str, ...] = ()  # What the classes are called; of text, the characters.

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        parts = ("train", "test", "mean", "deviation")
        return replace(self, **{name: getattr(self, name).to(device) for name in parts})

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return a model's input: images as float32 of mean 0 and deviation 1, text as it is."""
        return (inputs.float() - self.mean) / self.deviation if inputs.ndim == 4 else inputs
