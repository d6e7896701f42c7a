"""The augmentation of photographs, and torchvision's preparation of test images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torchvision.transforms import InterpolationMode, v2

from trainer.contract.described import mirrors
from trainer.contract.job import Train
from trainer.contract.models import ONE_SIDE, PREFIX
from trainer.core.job import JobError
from trainer.data.pictures import View
from trainer.vision.cache import named_weights
from trainer.vision.classifiers import known_name

if TYPE_CHECKING:
    from trainer.data.decoding import Transform

POLICIES = {"auto": v2.AutoAugment, "rand": v2.RandAugment, "trivial": v2.TrivialAugmentWide}
CROP_SCALE = 0.08
"""The least share of an image's area in a random crop (Szegedy et al. 2014, arXiv 1409.4842)."""


def training_transform(train: Train) -> Transform:
    """Random crops of S x S, mirrored or not, and a policy of colours and shapes."""
    more: dict[str, Any] = {}
    if train.interpolation:
        more = {"interpolation": InterpolationMode(train.interpolation)}
    scale = (train.crop_scale or CROP_SCALE, 1.0)
    steps: list[nn.Module] = [
        v2.RandomResizedCrop(train.image_size, scale=scale, antialias=True, **more),
    ]
    if mirrors(train):
        steps.append(v2.RandomHorizontalFlip())
    if train.augmentation:
        steps.append(POLICIES[train.augmentation](**more))
    composed: Transform = v2.Compose(steps)
    return composed


def erasing_transform() -> nn.Module:
    """Erase a random box of every image (Zhong et al. 2017, arXiv 1708.04896)."""
    erasing: nn.Module = v2.RandomErasing(p=1.0)
    return erasing


def mixing_transform(mixup: float | None, cutmix: float | None, classes: int) -> nn.Module:
    """Mix the images of a batch by one of the two at random, as in torchvision's recipes.

    MixUp: Zhang et al. 2017, arXiv 1710.09412. CutMix: Yun et al. 2019, arXiv 1905.04899.
    """
    both = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
    kinds = [kind(alpha=alpha, num_classes=classes) for kind, alpha in both if alpha is not None]
    chosen: nn.Module = v2.RandomChoice(kinds)
    return chosen


def weights_view(train: Train) -> tuple[View, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return how torchvision prepares images for a job's weights: the view, mean and deviation.

    Raises JobError if the weights have none, or images of another size than the training's.
    """
    found = named_weights(known_name(train.model), train.weights or "").transforms()
    (side,), (resize,) = found.crop_size, found.resize_size
    one = train.model.removeprefix(PREFIX).startswith(ONE_SIDE)
    if side < train.image_size or (one and side != train.image_size):
        what = f"train.test_transform: {train.weights} is tested with images of {side}×{side}"
        raise JobError(f"{what}; write `image_size: {side}`{'' if one else ', or less'}")
    return View(side, resize, found.interpolation.value), (tuple(found.mean), tuple(found.std))
