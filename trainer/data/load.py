"""Reads the data sets from their files.

Shapes: N samples, C channels, S pixels a side, T characters. Images are uint8 until they are used.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trainer.contract.job import Train
from trainer.contract.models import PHOTOGRAPHS, input_side, of_torchvision
from trainer.contract.own import is_own
from trainer.data.crops import image_transform, random_crops
from trainer.data.files import READ_BY_TORCHVISION, find_files, find_folder, is_packed
from trainer.data.folder import ImageFolder
from trainer.data.samples import DataError, DataSet, Samples
from trainer.data.shards import split
from trainer.data.views import LARGEST, STATISTICS, test_view

if TYPE_CHECKING:
    from trainer.data.pictures import View

TESTED = 0.2
"""Share of each class for the test, if a data set has no test part."""
SHORT = 10
"""The most epochs of a training with smaller shifts."""
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_data(train: Train, root: Path) -> DataSet:
    """Load a job's data set from the folder `root`; raises DataMissingError or DataError.

    The user's own data set may also raise JobError.
    """
    if is_own(train.dataset):
        from trainer.custom.data import load_own

        return load_own(train, root)
    found = load_known(train, root)
    return found if train.validation is None else hold_out(found, train)


def hold_out(data: DataSet, train: Train) -> DataSet:
    """Split a part off the training samples for the validation; raises DataError."""
    share = train.validation or 0.0
    if data.validation is not None:
        what = "train.validation: the data set already has a validation part"
        raise DataError(f"{what}, {len(data.validation):,} samples; leave the key out")
    rest, held = data.train.hold_out(share, train.split_seed or 0, data.test)
    if not len(held) or not len(rest):
        what = f"train.validation: {share:g} of the data leaves {len(held)} samples for it"
        raise DataError(f"{what}, and {len(rest)} to train; write another share, or add data")
    return replace(data, train=rest, validation=held)


def load_known(train: Train, root: Path) -> DataSet:
    """Load one of the trainer's own data sets; raises DataMissingError or DataError."""
    parts: Sequence[Samples]
    name, names = train.dataset, tuple[str, ...]()
    files = find_files(train, root) if name != "folder" else []
    if name == "text" and (train.tokenizer or is_packed(root / train.path)):
        from trainer.text.load import load_tokens

        return load_tokens(train, root, files)
    if name == "text":
        return load_text(files[0], train.context)
    if name == "digits":
        parts = load_digits(files[0], train.split_seed or 0)
    elif name == "mnist":
        parts = [load_mnist(files[:2]), load_mnist(files[2:])]
    elif name == "cifar10":
        batches = [read_cifar10(file) for file in files]
        columns = zip(*batches[:-1], strict=True)  # All images, and all labels.
        parts = [Samples(*map(torch.cat, columns)), Samples(*batches[-1])]
    elif name in READ_BY_TORCHVISION:
        from trainer.vision.datasets import read

        parts, names = read(name, root)
    elif name == "shards":
        from trainer.streaming.samples import load_shards

        parts, names = load_shards(train, root)
    else:
        folder = find_folder(train, root)
        parts, names = load_folder(folder, train), folder.classes
    view, (mean, deviation) = preparation(train, parts[0])
    names = names or (CIFAR10 if name == "cifar10" else tuple("0123456789"))
    side = parts[0].inputs.shape[-1]
    padding = most_shift(side, train.epochs) if len(mean) == 3 else 0  # None for digits.
    if random_crops(train):
        padding = 0  # The transforms shift and mirror.
    inputs = input_side(train.model, side) if of_torchvision(train.model) else 0
    about = (mean, deviation, len(names), padding, names, inputs, view)
    return DataSet(parts[0], parts[-1], *about, validation=parts[1] if len(parts) > 2 else None)


def most_shift(side: int, epochs: int) -> int:
    """Return the maximum shift, in pixels, of training images of that side.

    For 32 pixels: 2 in a short training and 4 in a longer one, as in airbench94 with 10 epochs and
    airbench95 with 15 (arXiv 2404.00498). He et al. 2015, section 4.2, use 4.
    """
    return side // (16 if epochs <= SHORT else 8)


def preparation(train: Train, part: Samples) -> tuple[View | None, list[Tensor]]:
    """Return the view of test images in files, and mean and deviation float32 [C, 1, 1].

    Those of digits are computed from the training `part`, which depends on the job's seed.
    """
    name, view = train.dataset, None
    largest = LARGEST.get(name, 255)
    if name in PHOTOGRAPHS:
        view, statistics = test_view(train)
    elif name == "digits":
        statistics = statistics_of(part.inputs / largest)
    else:
        statistics = STATISTICS[name]
    return view, [torch.tensor(values).view(-1, 1, 1) * largest for values in statistics]


def statistics_of(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the deviation of each channel of images float32 [N, C, S, S]."""
    found = (images.mean((0, 2, 3)), images.std((0, 2, 3)))
    mean, deviation = (tuple(each.tolist()) for each in found)
    return mean, deviation


def load_digits(file: Path, seed: int) -> list[Samples]:
    """The 1,797 images of 8x8 in scikit-learn, split by class: 1,437 to train, 360 to test."""
    table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))  # [1797, 8 * 8 + 1]
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long()
    return [Samples(images[part], labels[part]) for part in split(labels, TESTED, seed)]


def load_folder(folder: ImageFolder, train: Train) -> list[Samples]:
    """Images in folders by part and class."""
    from trainer.data.images import ImageFiles
    from trainer.data.pictures import View

    transform, copies = image_transform(train), train.repeated_augmentation or 1
    tested = (test_view(train)[0], None, 1)
    parts = folder_parts(folder, train.split_seed or 0)
    kinds = ((View(train.image_size), transform, copies), *[tested] * (len(parts) - 1))
    return [
        ImageFiles(
            torch.empty(0, 3, view.side, view.side, dtype=torch.uint8),
            labels,
            files,
            change,
            train.seed,
            view=view,
            copies=number,
        )
        for (files, labels), (view, change, number) in zip(parts, kinds, strict=True)
    ]


def folder_parts(folder: ImageFolder, seed: int) -> list[tuple[list[Path], Tensor]]:
    """Pictures for training, validation (if there is one) and test, with labels int64 [N].

    Without a test part, the training pictures are split. Raises DataError for an empty test.
    """
    parts = (folder.train, folder.validation, folder.test)
    if folder.test:
        return [(list(part.pictures), torch.tensor(part.labels)) for part in parts if part]
    files, labels = folder.train.pictures, torch.tensor(folder.train.labels)
    divided = split(labels, TESTED, seed)
    if not len(divided[1]):
        where = f"{files[0].parent.parent}: {len(files)} pictures of {len(folder.classes)} classes"
        raise DataError(f"{where} leave none for the test; add pictures, or a part test/")
    return [([files[each] for each in part.tolist()], labels[part]) for part in divided]


def load_text(file: Path, context: int) -> DataSet:
    """Characters, each labelled with the next one, in windows; the last tenth is the test."""
    from trainer.text.windows import Windows

    try:
        codes = np.frombuffer(file.read_text("utf-8").encode("utf-32-le"), np.uint32)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a text in UTF-8 ({error}); convert it") from error
    if len(codes) < (least := 10 * (context + 1)):
        raise DataError(f"{file}: train.context {context} needs {least} characters or more")
    vocabulary, numbers = np.unique(codes, return_inverse=True)
    parts = np.split(numbers.astype(np.uint32), [len(codes) * 9 // 10])
    hashes = (hashlib.blake2b(part.tobytes(), digest_size=16).digest() for part in parts)
    train, test = map(Windows.of, parts, repeat(context), hashes)
    characters = tuple(map(chr, vocabulary))
    figures = torch.zeros(1), torch.ones(1)
    tested = "".join(map(chr, codes[len(codes) * 9 // 10 :]))
    size = len(tested.encode()) / len(tested)
    return DataSet(
        *(train, test, *figures, len(vocabulary)), labels=characters, bytes_per_token=size
    )


def load_mnist(files: list[Path]) -> Samples:
    """Training or test part of MNIST, from images and labels; raises DataError if damaged."""
    images, labels = map(read_idx, files)
    if images.ndim != 3 or images.shape[:1] != labels.shape:
        both = " and ".join(map(str, files))
        raise DataError(f"{both} must hold as many images as labels; get both again")
    return Samples(images.unsqueeze(1), labels.to(torch.int64))


def read_idx(file: Path) -> Tensor:
    """An IDX file, maybe gzipped: 0, 0, 8, number of dimensions, each as 4 bytes, the values."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise DataError(f"{file} is not an IDX file of bytes; get it again")
        shape = np.frombuffer(content, ">u4", count=content[3], offset=4).tolist()
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        return torch.from_numpy(values.copy())
    except (OSError, EOFError, LookupError, ValueError, zlib.error) as error:
        raise DataError(f"{file} is damaged ({error}); get it again") from error


def read_cifar10(file: Path) -> tuple[Tensor, Tensor]:
    """Images and labels of a batch: a file of records (label, image), or a pickle."""
    try:
        if file.suffix == ".bin":
            content = bytearray(file.read_bytes())
            records = torch.frombuffer(content, dtype=torch.uint8).view(-1, 3073)
            labels, images = records[:, 0], records[:, 1:]
        else:
            with file.open("rb") as stream:
                # Python 2, whose strings are bytes, wrote the original files.
                batch = ArrayUnpickler(stream, encoding="bytes").load()
            labels, images = torch.tensor(batch[b"labels"]), torch.as_tensor(batch[b"data"])
        return images.reshape(len(labels), 3, 32, 32).to(torch.uint8), labels.long()
    except Exception as error:  # Its class depends on the damage.
        raise DataError(f"{file} is not a batch of CIFAR-10 ({error}); get it again") from error


class ArrayUnpickler(pickle.Unpickler):
    """Loads only arrays and plain values: other pickles may run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function that rebuilds arrays or bytes, for any module name."""
        rebuild: Any = np.empty(0).__reduce__()[0]
        for known in (rebuild, np.ndarray, np.dtype, codecs.encode):
            if known.__name__ == name:
                return known
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
