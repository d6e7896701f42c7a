"""The conversion of images to a model's inputs: statistics, and the view of test images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.contract.job import Train
from trainer.contract.models import PHOTOGRAPHS
from trainer.data.crops import random_crops

if TYPE_CHECKING:
    from trainer.data.pictures import View

# Mean and deviation of the training images per channel, as a share of the largest value: the usual
# figures (photographs: ImageNet). Those of digits are for checkpoints that do not have their own.
STATISTICS = {
    "digits": ((0.3053,), (0.3760,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    **dict.fromkeys(PHOTOGRAPHS, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
}
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
LARGEST = {"digits": 16}  # The largest value of a stored pixel, if it is not 255.


def test_view(train: Train) -> tuple[View, Statistics]:
    """Return the preparation of test images in files: the view, the mean and the deviation."""
    from trainer.data.pictures import View

    if train.test_transform:
        from trainer.vision.transforms import weights_view

        return weights_view(train)
    side, resize = train.test_image_size or train.image_size, train.test_resize or 0
    if random_crops(train) and not resize:
        resize = side  # By torchvision, as the crops: its filter differs from Pillow's default.
    return View(side, resize, train.interpolation or "bilinear"), STATISTICS[train.dataset]
