"""Weights by torchvision's names: their existence, files and checksums."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torchvision import models

from trainer.contract.words import nearest
from trainer.core.job import JobError
from trainer.data.files import DataMissingError
from trainer.store.files import digest

FOLDER = "weights"
"""The folder of downloads, below the data folder."""


def named_weights(name: str, weights: str) -> Any:
    """Return torchvision's weights of a name; raises JobError if there are none."""
    known = models.get_model_weights(name)
    if weights in known.__members__:
        return known[weights]
    names = list(known.__members__)
    what = f"torchvision has no weights {weights} for {name}"
    raise JobError(f"train.weights: {what}; {nearest(weights, names)}")


def places(found: Any, root: Path) -> list[Path]:
    """Return the possible paths of weights: below the data folder, and in torch's cache."""
    name = found.url.rpartition("/")[2]
    return [root / FOLDER / name, Path(torch.hub.get_dir()) / "checkpoints" / name]


def cached(found: Any, root: Path) -> Path:
    """Find the file of weights; raises DataMissingError."""
    tried = places(found, root)
    for file in tried:
        if file.is_file():
            check(file)
            return file
    raise DataMissingError(
        f"train.weights: {found} is in none of {', '.join(str(each.parent) for each in tried)}; "
        f"put {tried[0].name} there on every host, from {found.url}, or write `download: true`"
    )


def check(file: Path) -> None:
    """Raise DataMissingError if a file does not match the hash in its name."""
    promise = re.search(r"-([0-9a-f]{8,})\.", file.name)
    if promise and not digest(file).startswith(promise[1]):
        raise DataMissingError(f"train.weights: {file} fails its checksum; delete it")
