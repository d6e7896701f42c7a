"""Settings and data for tests of data sets and models, without a job file or any download."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from trainer.data.samples import DataSet, Samples

if TYPE_CHECKING:
    from trainer.contract.job import Train


def settings(dataset: str = "cifar10", model: str = "cnn", **changes: Any) -> "Train":
    """The keys of a job's train section that data sets and models read."""
    base: dict[str, Any] = {"path": "", "image_size": 32, "context": 8, "seed": 0}
    base |= {"weights": None, "download": None, "augmentation": None, "options": None}
    base |= {"activation_checkpointing": None}
    base |= {"learning_rate": 0.1, "weight_decay": 0.01}
    return cast("Train", SimpleNamespace(dataset=dataset, model=model, **(base | changes)))


def noise(channels: int, side: int, classes: int = 10, count: int = 20) -> DataSet:
    """Random images of random classes."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=draw, dtype=torch.uint8)
    samples = Samples(images, torch.randint(0, classes, (count,), generator=draw))
    values = torch.full((channels, 1, 1), 128.0)
    return DataSet(samples, samples, values, values / 2, classes)
