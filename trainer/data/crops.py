"""The augmentation: training images are shifted and mirrored, or cropped by torchvision.

Shapes: N samples, C channels, S pixels a side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.contract.image_rules import crops_at_random
from trainer.contract.job import Train
from trainer.data.shards import generator

if TYPE_CHECKING:
    from trainer.data.decoding import Transform

AUGMENTATION = 1  # A separate random stream, independent of the order of samples.


@dataclass(frozen=True)
class Crops:
    """The shift and mirroring of each training image in one epoch, independent of its rank."""

    shifts: Tensor  # int64 [N, 2], rows and columns, up to the padding in both directions.
    mirrored: Tensor  # bool [N].

    @staticmethod
    def of_epoch(samples: int, seed: int, epoch: int, padding: int, *, mirror: bool) -> Crops:
        """Draw shifts; each epoch mirrors the images that the last did not (arXiv 2404.00498)."""
        draw, once = generator(seed, epoch, AUGMENTATION), generator(seed, 0, 0, AUGMENTATION)
        shifts = torch.randint(-padding, padding + 1, (samples, 2), generator=draw)
        mirrored = (torch.rand(samples, generator=once) < 0.5) ^ (epoch % 2 == 1)
        return Crops(shifts, mirrored if mirror else torch.zeros_like(mirrored))

    def apply(self, images: Tensor, indices: Tensor) -> Tensor:
        """Crop and mirror images uint8 [n, C, S, S], the samples `indices` int64 [n]."""
        side, device = images.shape[-1], images.device
        shifts, window = self.shifts[indices, :, None].to(device), torch.arange(side, device=device)
        # Reflection padding.
        rows, columns = (side - 1 - (side - 1 - (shifts + window).abs()).abs()).unbind(dim=1)
        columns = torch.where(self.mirrored[indices, None].to(device), columns.flip(1), columns)
        sample = torch.arange(len(images), device=device)[:, None, None]
        # Advanced indices around a slice: the channels become the last dimension.
        return images[sample, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def image_transform(train: Train) -> Transform | None:
    """The random transform of training images; None for centre crops."""
    if not random_crops(train):
        return None
    from trainer.vision.transforms import training_transform

    return training_transform(train)


def random_crops(train: Train) -> bool:
    """Whether training images are random crops by torchvision's transforms."""
    return crops_at_random(train.dataset, train.model, train.augmentation)
