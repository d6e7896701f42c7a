"""The models: small image classifiers of ten classes.

Shapes: N images of a batch, C channels, S pixels a side; every model maps float32 [N, C, S, S] to
scores (logits) float32 [N, 10].
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 10


def build_model(train, data) -> nn.Module:
    """Build a model with fresh weights from torch's global generator.

    Args:
        name: cnn, lenet or resnet18.
        channels: C.
        side: S; lenet takes 28 and 32, the others any multiple of 4.
    """
    name = train.model
    _, channels, side, _ = data.train.inputs.shape
    if name == "cnn":
        return cnn(channels, side)
    if name == "lenet":
        return lenet(channels, side)
    # The layout in which convolutions are fastest on tensor cores, and in which the gradients of
    # 1x1 convolutions come out: in any other, every exchange of them would be a copy.
    model = ResNet18(channels)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def parameter_count(model: nn.Module) -> int:
    """Number of trained values: each costs 4 bytes of every gradient exchange."""
    return sum(parameter.numel() for parameter in model.parameters())


def cnn(channels: int, side: int) -> nn.Module:
    """Two 3x3 convolutions of 32 and 64 channels and 128 hidden units."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def lenet(channels: int, side: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling, as in PyTorch's CIFAR-10 tutorial."""
    return nn.Sequential(
        # Images of 28 pixels are padded to the 32 that LeNet-5 was drawn for.
        nn.Conv2d(channels, 6, 5, padding=(32 - side) // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2015) for small images: a 3x3 stem of stride 1 and no max pooling."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(
            *(Residual(before, after) for before, after in pairwise(widths))
        )
        self.head = nn.Linear(512, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, S, S] to [N, 10]."""
        features: Tensor = self.blocks(self.stem(images))
        scores: Tensor = self.head(features.mean(dim=(2, 3)))
        return scores


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a change of width halves the side."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, images: Tensor) -> Tensor:
        """[N, before, S, S] to [N, after, S, S], or half of S."""
        return functional.relu(self.convolutions(images) + self.shortcut(images))


class Lookahead:
    pass


def flip_scores(model, x):
    return model(x)


def parameter_groups(model, train):
    return [{"params": list(model.parameters()), "weight_decay": train.weight_decay}]
