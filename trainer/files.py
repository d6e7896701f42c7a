"""Where the data sets' files are. Standard library only: the launcher looks before torch does.

Nothing is ever downloaded here: N processes that fetch the same file during a training are slow at
best, and corrupt it at worst.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""As on yann.lecun.com/exdb/mnist; each may also end in .gz."""

CIFAR10_FOLDERS = {
    "cifar-10-batches-bin": (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"),
    "cifar-10-batches-py": (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"),
}
"""The folders in the two archives on cs.toronto.edu/~kriz/cifar.html, the safer format first."""


class DataMissingError(Exception):
    """A data set is not there; the message says what, where it was looked for and what to do."""


def find_files(dataset: str, root: Path) -> list[Path]:
    """Find the files of a data set, those of training before those of the test.

    Args:
        dataset: digits (no files: it comes with scikit-learn), mnist or cifar10.
        root: The data folder.

    Raises:
        DataMissingError: Any of them is missing.
    """
    if dataset == "digits":
        if importlib.util.find_spec("sklearn") is None:
            raise DataMissingError(
                "digits comes with scikit-learn, which is not installed here; use the trainer "
                "image, or: pip install scikit-learn"
            )
        return []
    if dataset == "mnist":
        # The last one is where torchvision puts them.
        folders = [root, root / "mnist", root / "MNIST" / "raw"]
        choices = [[_or_gz(folder / name) for name in MNIST_FILES] for folder in folders]
    else:
        choices = [
            [folder / name / file for file in files]
            for folder in (root, root / "cifar10")
            for name, files in CIFAR10_FOLDERS.items()
        ]
    missing = [[file for file in files if not file.is_file()] for files in choices]
    for files, gone in zip(choices, missing, strict=True):
        if not gone:
            return files
    raise DataMissingError(_message(dataset, root, choices, missing))


def _or_gz(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return packed if packed.is_file() else path


def _message(dataset: str, root: Path, choices: list[list[Path]], missing: list[list[Path]]) -> str:
    folders = ", ".join(str(files[0].parent) for files in choices)
    fewest = min(missing, key=len)
    names = ", ".join(file.name for file in fewest)
    return (
        f"{dataset} is not complete in any of {folders}: missing {names}; put the original files "
        f"there on every host before training (nothing is downloaded), or set KIT_DATA to the "
        f"folder that has them instead of {root}"
    )
