"""Names of data sets, models and weights, and the sizes of inputs, without importing torchvision.

Only the trainer can check whether torchvision has a model of a name (trainer/vision).
"""

from __future__ import annotations

import re

from trainer.contract.own import is_own, reference_fault
from trainer.contract.words import nearest, shown

OWN = ("cnn", "lenet", "resnet18", "airbench", "gpt")
"""The models of trainer/core/models.py."""
DATASETS = (
    *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100"),
    *("folder", "shards", "text"),
)
"""The data sets that trainer/data loads."""
PHOTOGRAPHS = ("folder", "shards")
"""Data sets of images in files, of any size."""
CROPPED = ("cifar10", "cifar100", *PHOTOGRAPHS)
"""Data sets of colour images, which are shifted, or cropped at random."""
SIDES = {"digits": 8, "mnist": 28, "fashion_mnist": 28, "cifar10": 32, "cifar100": 32}
"""Pixels a side; images of a folder are resized to `image_size`."""
OWN_DATA = ("folder", "shards", "text")
"""The user's own data sets, at a path. Their classes or characters are counted in the data, and
determine the number of the model's parameters."""
MIRRORED = ("fashion_mnist", "cifar10", "cifar100", *PHOTOGRAPHS)
"""Data sets whose images keep their class when they are mirrored; digits do not."""
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "cifar100")
"""Data sets that torchvision can download."""
PREFIX = "torchvision/"
NAME = r"torchvision/[a-z][a-z0-9_]*"
LAYER = r"\w+(\.\w+)*"
"""As PyTorch names modules and parameters: layer1.0.conv2."""
ONE_SIDE = ("vit_", "maxvit_")
"""Prefixes of torchvision's models whose weights are for one image size."""
WEIGHTS_NAME = r"[A-Z][A-Z0-9_]*"
"""As in torchvision's enumerations: IMAGENET1K_V2. Any other text is a file."""
LEAST_SIDE = 64
"""Pixels a side. Most of torchvision's models divide the side by 32, and BatchNorm cannot train on
one sample of a single pixel."""
LEAST_SIDES = {"inception_v3": 299, "vit_": 224, "maxvit_": 224, "swin_v2_": 256}
"""Pixels a side for models, or families, that were designed for larger images."""


def of_torchvision(model: object) -> bool:
    """Whether a model is one of torchvision's."""
    return isinstance(model, str) and model.startswith(PREFIX)


def model_fault(value: object) -> tuple[str, str] | None:
    """Return the fault in the form of a model's name; None if it is valid."""
    if value in OWN or (isinstance(value, str) and re.fullmatch(NAME, value)):
        return None
    if isinstance(value, str) and is_own(value):
        return reference_fault(value, "model: mymodel:build")
    if isinstance(value, str) and "torchvision" in value.lower().partition("/")[0]:
        form = "small letters, digits and _ behind the slash, such as `model: torchvision/resnet50`"
        return f"{shown(value)} is not the name of a model of torchvision", f"write {form}"
    fix = nearest(value, [*OWN, f"{PREFIX}<name>"])
    if fix.endswith("?"):
        fix += f" Models of torchvision are written {PREFIX}<name>"
    return f"{shown(value)} is not known", fix


def dataset_fault(value: object) -> tuple[str, str] | None:
    """Return the fault in the name of a data set; None if it is valid."""
    if isinstance(value, str) and is_own(value):
        return reference_fault(value, "dataset: mymodel:data")
    return None if value in DATASETS else (f"{shown(value)} is not known", nearest(value, DATASETS))


def layers_fault(value: object) -> tuple[str, str] | None:
    """Return the fault in the form of a list of layers' names; None if it is valid."""
    fix = "write for example `freeze: [conv1, layer1]`, or `freeze: [backbone]`"
    if not isinstance(value, list | tuple) or not value:
        return f"{shown(value)} is not a list of names of layers", fix
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(LAYER, name, flags=re.ASCII):
            return f"{shown(name)} is not the name of a layer", fix
    return None


def is_weights_name(weights: str) -> bool:
    """Whether weights have the form of torchvision's names; otherwise they are a file."""
    return re.fullmatch(WEIGHTS_NAME, weights) is not None


def input_side(model: str, side: int) -> int:
    """Return the pixels a side of a model's inputs; the images have `side`."""
    if not of_torchvision(model):
        return side
    name = model.removeprefix(PREFIX)
    least = (least for start, least in LEAST_SIDES.items() if name.startswith(start))
    return max(side, next(least, LEAST_SIDE))
