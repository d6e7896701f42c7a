"""The augmentation of photographs: torchvision's transforms, on Pillow's images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchvision.transforms import v2

if TYPE_CHECKING:
    from trainer.data.images import Transform

POLICIES = {"auto": v2.AutoAugment, "rand": v2.RandAugment, "trivial": v2.TrivialAugmentWide}


def training_transform(side: int, policy: str | None) -> Transform:
    """Random crops of S x S, half of them mirrored, and a policy of colours and shapes."""
    steps = [v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()]
    composed: Transform = v2.Compose([*steps, POLICIES[policy]()] if policy else steps)
    return composed
