"""The augmentation of training images on their device, equal for any number of ranks.

Shapes: N samples, C channels, S pixels a side, K classes. All random choices depend only on the
seed, the epoch and the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.contract.described import mirrors
from trainer.contract.job import Train
from trainer.data.crops import Crops
from trainer.data.samples import DataSet
from trainer.data.shards import generator, seed_of, seeded

CHOSEN, ERASING, MIXING = 4, 5, 6  # Separate random streams, with the same seed.


class Stretch(NamedTuple):
    """Adjacent samples of a block, whose samples are mixed with each other.

    `indices` int64 [n] are the `whole` block, or a part of it after one extra sample, which is only
    needed for mixing.
    """

    indices: Tensor
    whole: bool
    first: int  # The first sample of the block.


@dataclass(frozen=True)
class Mixing:
    """MixUp or CutMix of pairs of images, by torchvision's transforms.

    A block has as many samples of a global batch as a rank's micro-step. Each block gets one of the
    transforms, and each of its images is mixed with the one before it. A rank with only a part of a
    block also reads the sample before that part. So the pairs do not depend on the number of ranks,
    unlike in torchvision's script. One mixing ratio for the whole global batch would regularise
    differently from the recipes, which have one for each GPU.
    """

    transform: Any
    seed: int
    block: int

    def stretches(self, batch: Tensor, piece: Tensor) -> list[Stretch]:
        """Divide a rank's piece of a global batch, int64 [n] each, by blocks."""
        begin = int((batch == piece[0]).nonzero()[0])
        found, end = list[Stretch](), begin + len(piece)
        for start in range(begin // self.block * self.block, end, self.block):
            block = batch[start : start + self.block]
            low, high = max(begin - start, 0), min(end - start, len(block))
            whole = high - low == len(block)
            before = block[:0] if whole else block[low - 1 : low] if low else block[-1:]
            found.append(Stretch(torch.cat((before, block[low:high])), whole, int(block[0])))
        return found

    def mix(self, stretch: Stretch, epoch: int, images: Tensor, labels: Tensor) -> Any:
        """Mix images float32 [n, C, S, S]; return them with their targets float32 [n, K].

        For a part of a block, the extra sample is removed.
        """
        with seeded(seed_of(self.seed, epoch, stretch.first, MIXING)):
            mixed, targets = self.transform(images, labels)
        return (mixed, targets) if stretch.whole else (mixed[1:], targets[1:])


@dataclass(frozen=True)
class Erasing:
    """Erases a random box in some images: torchvision's RandomErasing."""

    transform: Any
    seed: int
    chosen: Tensor  # bool [N]

    def erase(self, indices: Tensor, epoch: int, images: Tensor) -> Tensor:
        """Erase in images float32 [n, C, S, S], the samples `indices` int64 [n]."""
        for place in self.chosen[indices].nonzero().flatten().tolist():
            with seeded(seed_of(self.seed, epoch, int(indices[place]), ERASING)):
                images[place] = self.transform(images[place])
        return images


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of the training images of an epoch."""

    epoch: int
    crops: Crops | None = None
    erasing: Erasing | None = None
    mixing: Mixing | None = None

    @staticmethod
    def of_epoch(train: Train, data: DataSet, epoch: int) -> Augmentation:
        """Make the random choices of an epoch."""
        numbers, seed = data.train.numbers, train.seed
        crops = None
        if data.padding:
            crops = Crops.of_epoch(numbers, seed, epoch, data.padding, mirror=mirrors(train))
        return Augmentation(epoch, crops, erasing(train, numbers, epoch), mixing(train, data))

    def reads(self, batch: Tensor, piece: Tensor) -> Tensor:
        """Return the samples int64 [m] to read for a `piece` of a global batch, int64 [n] each."""
        if not self.mixing:
            return piece
        return torch.cat([each.indices for each in self.mixing.stretches(batch, piece)])

    def apply(self, indices: Tensor, images: Tensor) -> Tensor:
        """Shift and mirror images uint8 [n, C, S, S], the samples `indices` int64 [n]."""
        return self.crops.apply(images, indices) if self.crops else images

    def apply_prepared(
        self, batch: Tensor, piece: Tensor, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Erase and mix the images of `reads`, float32 [m, C, S, S], with labels int64 [m].

        Return the images of the piece, and their labels or, if mixed, targets float32 [n, K].
        """
        if self.erasing:
            images = self.erasing.erase(self.reads(batch, piece), self.epoch, images)
        if not self.mixing:
            return images, labels
        stretches = self.mixing.stretches(batch, piece)
        sizes = [len(each.indices) for each in stretches]
        divided = (torch.split(images, sizes), torch.split(labels, sizes))
        parts = zip(stretches, *divided, strict=True)
        mixed = [self.mixing.mix(stretch, self.epoch, *part) for stretch, *part in parts]
        inputs, targets = (torch.cat(each) for each in zip(*mixed, strict=True))
        return inputs, targets


def erasing(train: Train, numbers: int, epoch: int) -> Erasing | None:
    """Choose the images of an epoch in which a box is erased, among `numbers` sample numbers."""
    if train.random_erasing is None:
        return None
    from trainer.vision.transforms import erasing_transform

    draw = torch.rand(numbers, generator=generator(train.seed, epoch, CHOSEN))
    return Erasing(erasing_transform(), train.seed, draw < train.random_erasing)


def mixing(train: Train, data: DataSet) -> Mixing | None:
    """Return the job's mixing of images."""
    if train.mixup is None and train.cutmix is None:
        return None
    from trainer.vision.transforms import mixing_transform

    transform = mixing_transform(train.mixup, train.cutmix, data.classes)
    return Mixing(transform, train.seed, train.batch_size)
