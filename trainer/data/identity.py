"""A short text with which hosts compare their data: equal for equal data in any format."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.data.digests import digest
from trainer.data.samples import DataSet, Samples


def identity(data: DataSet, kept: Path | None = None) -> str:
    """Describe a data set by its number of samples and a hash.

    `kept` is a folder in which the digests of its files are cached for the next start.
    """
    hashed = hashlib.blake2b(repr(data.labels).encode(), digest_size=6)
    for part in data.parts:
        _add(hashed, part, kept)
    numbers = " + ".join(f"{len(part):,}" for part in data.parts)
    return f"{numbers} samples, {hashed.hexdigest()}"


def _add(hashed: Any, samples: Samples, kept: Path | None) -> None:
    _add_tensor(hashed, samples.labels)
    hashed.update(samples.content)
    if samples.mapped:
        hashed.update(digest(samples.mapped, kept).encode())
    files = samples.paths
    if not files:
        return _add_tensor(hashed, samples.inputs)
    for file in files:
        # Without the data folder, which may differ between hosts.
        hashed.update("/".join(os.fspath(file).rsplit("/", 3)[1:]).encode() + b"\0")
    hashed.update(digest(files, kept).encode())
    return None


def _add_tensor(hashed: Any, tensor: Tensor) -> None:
    hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    for rows in torch.split(tensor, 4096):
        hashed.update(rows.contiguous().numpy())
