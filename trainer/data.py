"""The data sets as tensors in memory: at most 180 MB, so no loader processes are needed.

Shapes: N samples, C channels, S pixels a side. Images stay uint8 until a batch of them is used.
"""

from __future__ import annotations

import codecs
import gzip
import pickle
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch.nn import functional

from trainer.files import find_files
from trainer.shards import generator

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    Array = np.ndarray[Any, Any]

# Mean and standard deviation of the training images per channel, as a share of the largest value.
# mnist and cifar10: the figures in common use, e.g. pytorch/examples and kuangliu/pytorch-cifar;
# digits: computed over all 1,797 images.
STATISTICS = {
    "digits": ((0.3053,), (0.3760,)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
DIGITS_LARGEST = 16
IDX_BYTES = 8
"""The type code of unsigned bytes in an IDX file."""
TEST_SHARE = 5
"""One of so many digits of each class is for the test."""
CROP_PADDING = 4
"""Pixels (He et al. 2015, section 4.2)."""
AUGMENTATION = 1
"""Keeps the random numbers of the augmentation apart from those of the order."""


class DataError(Exception):
    """A file is not what its name promises; the message names it."""


@dataclass(frozen=True)
class Samples:
    """Images and what they show."""

    inputs: Tensor
    """uint8 [N, C, S, S]."""
    labels: Tensor
    """int64 [N], 0 to 9."""

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        """The same on another device."""
        return Samples(self.inputs.to(device), self.labels.to(device))

    def take(self, i, device):
        i = i.to(device)
        return self.inputs[i], self.labels[i]

    def prefetch(self, i):
        pass


@dataclass(frozen=True)
class DataSet:
    """A data set with its split and its figures."""

    train: Samples
    test: Samples
    mean: Tensor
    """float32 [C, 1, 1], in units of the stored images."""
    deviation: Tensor
    """float32 [C, 1, 1], in units of the stored images."""
    PARTS = ("train", "test", "mean", "deviation")
    augmented: bool
    """Whether training images are cropped and mirrored; wrong for digits, which a mirror breaks."""

    def to(self, device: torch.device) -> DataSet:
        """The same on another device."""
        parts: Any = {name: getattr(self, name).to(device) for name in self.PARTS}
        return replace(self, **parts)

    def prepared(self, images: Tensor) -> Tensor:
        """uint8 [n, C, S, S] to float32 of mean 0 and deviation 1."""
        return (images.float() - self.mean) / self.deviation


def load_data(train, root) -> DataSet:
    """Load the data set digits, mnist or cifar10 from the data folder `root`.

    The seed decides the split of digits; the others come with theirs.

    Raises:
        DataMissingError: Files are missing.
        DataError: A file is damaged.
    """
    name, seed = train.dataset, train.seed
    files = find_files(name, root)
    if name == "digits":
        train, test, largest = *load_digits(seed), DIGITS_LARGEST
    elif name == "mnist":
        train, test, largest = load_mnist(files[:2]), load_mnist(files[2:]), 255
    else:
        train, test, largest = load_cifar10(files[:-1]), load_cifar10(files[-1:]), 255
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) * largest for values in STATISTICS[name])
    return DataSet(train, test, mean, deviation, augmented=name == "cifar10")


def load_digits(seed: int) -> tuple[Samples, Samples]:
    """The 1,797 images of 8x8 in scikit-learn, split by class: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    every = Samples(
        torch.from_numpy(images).to(torch.uint8).view(-1, 1, 8, 8),
        torch.from_numpy(labels).to(torch.int64),
    )
    order = torch.randperm(len(every), generator=generator(seed))
    by_class = order[every.labels[order].argsort(stable=True)]
    is_test = torch.arange(len(every)) % TEST_SHARE == 0
    train, test = by_class[~is_test], by_class[is_test]
    return (
        Samples(every.inputs[train], every.labels[train]),
        Samples(every.inputs[test], every.labels[test]),
    )


def load_mnist(files: list[Path]) -> Samples:
    """One half of MNIST from its images and its labels file, packed or not.

    Raises:
        DataError: A file is damaged.
    """
    images, labels = (read_idx(file) for file in files)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{files[0]} has shape {images.shape} and {files[1]} {labels.shape}: they must have as "
            "many images as labels; get both again"
        )
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).to(torch.int64))


def read_idx(file: Path) -> Array:
    """Read an IDX file of bytes: two zeros, 8, the number of dimensions, each as 4 bytes, values.

    Raises:
        DataError: It is none, or it is cut short.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        zeros, kind, dimensions = struct.unpack_from(">HBB", content)
        if (zeros, kind) != (0, IDX_BYTES):
            raise DataError(f"{file} is not an IDX file of bytes; get it again")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape).copy()
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise DataError(f"{file} is damaged ({error}); get it again") from error


def load_cifar10(files: list[Path]) -> Samples:
    """Batches of CIFAR-10, binary or pickled.

    Raises:
        DataError: A file is damaged.
    """
    read = read_cifar_binary if files[0].suffix == ".bin" else read_cifar_pickle
    images, labels = zip(*(read(file) for file in files), strict=True)
    return Samples(
        torch.from_numpy(np.concatenate(images)).view(-1, 3, 32, 32),
        torch.from_numpy(np.concatenate(labels)).to(torch.int64),
    )


def read_cifar_binary(file: Path) -> tuple[Array, Array]:
    """Records of one label and 3,072 bytes: images uint8 [N, 3072] and labels uint8 [N].

    Raises:
        DataError: The file does not end with a record.
    """
    content = np.frombuffer(file.read_bytes(), np.uint8)
    if not len(content) or len(content) % 3073:
        raise DataError(f"{file} is not a whole number of records of 3073 bytes; get it again")
    records = content.reshape(-1, 3073)
    return records[:, 1:], records[:, 0]


def read_cifar_pickle(file: Path) -> tuple[Array, Array]:
    """A pickled batch: images uint8 [N, 3072] and labels int64 [N].

    Raises:
        DataError: It is damaged or holds anything but arrays and plain values.
    """
    try:
        with file.open("rb") as stream:
            batch = ArrayUnpickler(stream).load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"], np.int64)
        return images.reshape(len(labels), 3072).astype(np.uint8, copy=False), labels
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} is not a batch of CIFAR-10 ({error}); get it again") from error


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays and plain values only: a pickle may otherwise run any code."""

    ALLOWED = {  # noqa: RUF012
        # What rebuilds an array; its module has moved between versions of NumPy.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        # How Python 3 writes bytes in the protocol of Python 2.
        ("_codecs", "encode"): codecs.encode,
    }

    def __init__(self, stream: BinaryIO) -> None:
        # The original files were written by Python 2, whose texts are bytes.
        super().__init__(stream, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Look up a callable of the pickle.

        Raises:
            pickle.UnpicklingError: It is not one of those that arrays need.
        """
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.ALLOWED[module, name]


@dataclass(frozen=True)
class Crops:
    """How each training image is shifted and mirrored in one epoch, whoever works on it."""

    shifts: Tensor
    """int64 [N, 2], rows and columns, 0 to twice the padding."""
    mirrored: Tensor
    """bool [N]."""

    @staticmethod
    def of_epoch(samples: int, seed: int, epoch: int) -> Crops:
        """Draw the crops of an epoch."""
        draw = generator(seed, epoch, AUGMENTATION)
        shifts = torch.randint(2 * CROP_PADDING + 1, (samples, 2), generator=draw)
        return Crops(shifts, torch.rand(samples, generator=draw) < 0.5)

    def apply(self, images: Tensor, indices: Tensor) -> Tensor:
        """Crop and mirror the images uint8 [n, C, S, S] of the samples `indices` int64 [n]."""
        count, _, side, _ = images.shape
        padded = functional.pad(images, (CROP_PADDING,) * 4)
        window = torch.arange(side, device=images.device)
        shifts = self.shifts[indices].to(images.device)
        rows, columns = (shifts[:, axis, None] + window for axis in (0, 1))
        mirror = self.mirrored[indices].to(images.device)
        columns = torch.where(mirror[:, None], columns.flip(1), columns)
        sample = torch.arange(count, device=images.device)[:, None, None]
        # Advanced indices around a slice: the channels end up last.
        picked = padded[sample, :, rows[:, :, None], columns[:, None, :]]
        return picked.permute(0, 3, 1, 2)
