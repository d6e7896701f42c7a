"""Data sets that torchvision downloads, checks and reads.

Shapes: N samples, C channels, S pixels a side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from trainer.data.samples import DataError, Samples

CLASSES: dict[str, Any] = {
    "mnist": datasets.MNIST,
    "fashion_mnist": datasets.FashionMNIST,
    "cifar10": datasets.CIFAR10,
    "cifar100": datasets.CIFAR100,
}


def read(name: str, root: Path) -> tuple[list[Samples], tuple[str, ...]]:
    """Read the training and test part of a data set below `root`, and the names of its classes.

    Raises DataError if a file is damaged.
    """
    try:
        parts = [CLASSES[name](root, train=train) for train in (True, False)]
    except Exception as error:  # Its class depends on the damage.
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DataError(f"{name} below {root} is damaged ({reason}); get it again") from error
    samples = [Samples(images(part.data), torch.as_tensor(part.targets)) for part in parts]
    return samples, tuple(parts[0].classes)


def images(data: Any) -> torch.Tensor:
    """Convert an array [N, S, S, 3] or a tensor [N, S, S] to uint8 [N, C, S, S]."""
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data).permute(0, 3, 1, 2).contiguous()
    found: torch.Tensor = data.unsqueeze(1)
    return found
