"""Settings and data for tests of data sets and models, without a job file or any download."""

from typing import Any

import torch

from trainer.contract.job import Train
from trainer.data.samples import DataSet, Samples


def settings(dataset: str = "cifar10", model: str = "cnn", **changes: Any) -> Train:
    """The keys of a job's train section that data sets and models read."""
    base: dict[str, Any] = {"context": 8, "learning_rate": 0.1, "weight_decay": 0.01}
    base |= {"epochs": 1, "batch_size": 1}
    return Train(dataset=dataset, model=model, **(base | changes))


def noise(channels: int, side: int, classes: int = 10, count: int = 20) -> DataSet:
    """Random images of random classes."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=draw, dtype=torch.uint8)
    samples = Samples(images, torch.randint(0, classes, (count,), generator=draw))
    values = torch.full((channels, 1, 1), 128.0)
    return DataSet(samples, samples, values, values / 2, classes)
