"""The models for images, and frozen layers.

Shapes: N samples of a batch, C channels, S pixels a side, K classes. From images, float32
[N, C, S, S], to scores (logits) [N, K]. The model for texts is in gpt.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from trainer.contract.gpt import gpt_of
from trainer.contract.job import Train
from trainer.contract.models import of_torchvision
from trainer.contract.own import is_own
from trainer.contract.words import nearest
from trainer.core.gpt import GPT, initialise
from trainer.core.job import JobError
from trainer.custom.functions import build_own
from trainer.data.samples import DataSet

BACKBONE = "backbone"
"""Stands for all layers except the last one with parameters, unless a layer has this name."""


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Exclude the layers of these names, and all layers within them, from the training.

    Raises JobError if no layer has a name, or no parameters remain to train.
    """
    for name in names:
        for parameter in parameters_of(model, name):
            parameter.requires_grad = False
    if not any(each.requires_grad for each in model.parameters()):
        what = f"train.freeze: {', '.join(names)} leaves nothing to train"
        raise JobError(f"{what}; leave a layer out, or write `freeze: [{BACKBONE}]`")


def parameters_of(model: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the parameters of a layer; raises JobError if there are none."""
    known = dict(model.named_parameters())
    found = [each for key, each in known.items() if f"{key}.".startswith(f"{name}.")]
    if not found and name == BACKBONE:
        head = head_of(model)
        found = [each for key, each in known.items() if not key.startswith(f"{head}.")]
    if found:
        return found
    first = dict.fromkeys(key.partition(".")[0] for key in known)
    within = dict.fromkeys(part for key in known for part in prefixes(key))
    what = f"train.freeze: the model has no layer {name}"
    raise JobError(f"{what}; {nearest(name, first | within)}")


def prefixes(name: str) -> list[str]:
    """Return the names of all layers around a parameter, and the parameter's name."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def head_of(model: nn.Module) -> str:
    """Return the name of the last layer that has its own parameters."""
    modules = model.named_modules()
    return [str(name) for name, each in modules if list(each.parameters(recurse=False))][-1]


def train_mode(model: nn.Module, frozen: Sequence[str] | None) -> None:
    """Set a model to training mode, but its frozen BatchNorm layers to evaluation mode.

    Their statistics belong to the frozen weights, and must not change either.
    """
    model.train()
    for each in model.modules() if frozen else ():
        own = list(each.parameters(recurse=False))
        if isinstance(each, _NormBase) and own and not any(one.requires_grad for one in own):
            each.eval()


def build_model(train: Train, data: DataSet) -> nn.Module:
    """Build the model of a job for its data, with new weights from torch's global generator.

    Raises JobError for a fault in the user's own model.
    """
    model = unfrozen_model(train, data)
    if train.freeze:
        freeze(model, train.freeze)
    return model


def unfrozen_model(train: Train, data: DataSet) -> nn.Module:
    """Build the model of a job, with all parameters that it trains; raises JobError."""
    if is_own(train.model):
        return build_own(train, data.shape, data.labels)
    if train.model == "gpt":
        model = build_empty_gpt(train, data).to_empty(device="cpu")
        initialise(model, train.seed)
        return model
    if of_torchvision(train.model):
        return channels_last(torchvision_model(train.model, data))
    channels, side, _ = data.train.inputs.shape[1:]
    if train.model in ("cnn", "lenet"):
        return (cnn if train.model == "cnn" else lenet)(channels, side, data.classes)
    if train.model == "airbench":
        return channels_last(Airbench(data))
    return channels_last(resnet18(channels, data.classes))


def build_empty_gpt(train: Train, data: DataSet) -> GPT:
    """Build the GPT of a job on torch's meta device: without memory for weights."""
    size, recompute = gpt_of(train.options), bool(train.activation_checkpointing)
    with torch.device("meta"):
        return GPT(size, data.classes, train.context, recompute=recompute, end=data.end)


def channels_last(model: nn.Module) -> nn.Module:
    """Change a model's memory format to channels_last.

    Convolutions are fastest in it on tensor cores, and the gradients of 1x1 convolutions have it:
    with any other format, every exchange would copy them.
    """
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def torchvision_model(name: str, data: DataSet) -> nn.Module:
    """Build a classifier of torchvision.models; raises JobError."""
    from trainer.vision.classifiers import build

    return build(name, data.classes, data.side)


def parameter_count(model: nn.Module) -> int:
    """Number of trained values: each adds 4 bytes to each all-reduce of gradients."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Two 3x3 convolutions of 32 and 64 channels and 128 hidden units."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (side // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, classes)),
    )


def lenet(channels: int, side: int, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling, as in PyTorch's CIFAR-10 tutorial."""
    padding = max(0, (32 - side) // 2)  # To the 32 pixels of LeNet-5.
    left = ((side + 2 * padding - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * left**2, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def resnet18(channels: int, classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015) for small images: a 3x3 stem of stride 1 and no max pooling."""
    stem = (nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    widths = pairwise((64, 64, 64, 128, 128, 256, 256, 512, 512))
    parts = OrderedDict(
        stem=nn.Sequential(*stem),
        blocks=nn.Sequential(*(Residual(*each) for each in widths)),
        pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        head=nn.Linear(512, classes),
    )
    return nn.Sequential(parts)


class Residual(nn.Module):
    """Two 3x3 convolutions with a shortcut; a change of width halves the side."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)),
            *(nn.ReLU(), nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut = nn.Sequential()
        if before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, images: Tensor) -> Tensor:
        """From [N, before, S, S] to [N, after, S, S], or half of S."""
        return functional.relu(self.convolutions(images) + self.shortcut(images))


class Airbench(nn.Module):
    """airbench94 (Jordan 2024, arXiv 2404.00498): CIFAR-10 to 94 % in ten epochs; S is 16 or more.

    As legacy/airbench94.py of github.com/KellerJordan/cifar10-airbench, with two differences: the
    values stay float32, and the bias of the whitening layer is trained in all epochs, not in three.
    """

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        filters = whitening_filters(data)
        self.whitening = nn.Conv2d(filters.shape[1], len(filters), 2)
        self.whitening.weight = nn.Parameter(filters, requires_grad=False)
        self.whitening.bias.data.zero_()  # type: ignore[union-attr]
        layers: list[nn.Module] = []
        for before, after in pairwise((len(filters), 64, 64, 256, 256, 256, 256)):
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            nn.init.dirac_(convolution.weight.data[:before])  # An identity at first.
            norm = nn.BatchNorm2d(after, eps=1e-12, momentum=0.4)
            norm.weight.requires_grad = False
            pool = nn.Identity() if len(layers) % 8 else nn.MaxPool2d(2)
            layers += [convolution, pool, norm, nn.GELU()]
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(256, data.classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """From [N, C, S, S] to [N, K]."""
        features: Tensor = self.blocks(functional.gelu(self.whitening(images)))
        return functional.linear(features.amax(dim=(2, 3)), self.head.weight) / 9


def whitening_filters(data: DataSet) -> Tensor:
    """Filters [8 C, C, 2, 2] that turn 2x2 patches of training images into uncorrelated values."""
    # 5,000 evenly spaced images: those of a folder are sorted by class.
    some = torch.arange(0, len(data.train), max(1, len(data.train) // 5000))
    images = data.prepared(data.train.take(some, torch.device("cpu"))[0])
    patches = functional.unfold(images, 2).transpose(1, 2).flatten(0, 1)
    variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    # Each eigenvector divided by the deviation along it, with a term against noise in the smallest.
    # Then the negatives of all, as GELU suppresses one sign.
    filters = (directions / (variances + 5e-4).sqrt()).T.flip(0)
    return torch.cat((filters, -filters)).view(-1, images.shape[1], 2, 2)


Group = tuple[float, float]
"""The factor of the learning rate, and the weight decay, of a parameter."""
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers whose parameters have `norm_weight_decay`; torchvision's layers are subclasses."""


def groups_of(model: nn.Module, train: Train) -> list[tuple[str, nn.Parameter, Group]]:
    """Return the trained parameters with their names and groups."""
    layers = list(model.modules())
    norms = {id(each) for layer in layers for each in norm_parameters(layer)}
    embedded = {id(each.weight) for each in layers if isinstance(each, nn.Embedding)}
    found = []
    for name, each in model.named_parameters():
        fast = train.model == "airbench" and "blocks" in name and each.ndim == 1
        if id(each) in norms:
            decay = train.norm_weight_decay or 0.0
        elif each.ndim < 2:
            decay = train.bias_weight_decay or 0.0
        else:
            decay = 0.0 if id(each) in embedded else train.weight_decay
        if each.requires_grad:
            found.append((name, each, (64.0 if fast else 1.0, decay)))
    return found


def norm_parameters(layer: nn.Module) -> list[nn.Parameter]:
    """Return the own parameters of a normalisation layer; none of other layers."""
    return list(layer.parameters(recurse=False)) if isinstance(layer, NORMS) else []


def grouped_names(model: nn.Module, train: Train) -> list[list[str]]:
    """Return the names of the parameters in each group of a model that is not divided."""
    groups: dict[Group, list[str]] = {}
    for name, _, group in groups_of(model, train):
        groups.setdefault(group, []).append(name)
    return list(groups.values())


def parameter_groups(model: nn.Module, train: Train) -> list[dict[str, Any]]:
    """Group the trained parameters; a group's rate is the schedule's rate times its "scale".

    Those of a divided model are grouped by device mesh too: an optimizer updates a group at once.
    """
    groups: dict[tuple[Group, object], list[nn.Parameter]] = {}
    for _, each, group in groups_of(model, train):
        mesh = each.device_mesh if isinstance(each, DTensor) else None
        groups.setdefault((group, mesh), []).append(each)
    # The optimizer multiplies the decay by the group's rate; the division cancels its "scale".
    rate = train.learning_rate
    more = {"momentum": 0.85} if train.model == "airbench" else {}
    return [
        {"params": group, "scale": scale, "lr": rate * scale, "weight_decay": own / scale} | more
        for ((scale, own), _), group in groups.items()
    ]


def flip_scores(model: nn.Module, inputs: Tensor) -> Tensor:
    """Mean of the scores of six views of the images: three shifts, each also mirrored."""
    side = inputs.shape[-1]
    padded = functional.pad(inputs, (1, 1, 1, 1), "reflect")
    # One pixel up and left, or down and right; both together weigh as much as no shift.
    views = (inputs, *(padded[:, :, at : at + side, at : at + side] for at in (0, 2)))
    still, first, second = ((model(view) + model(view.flip(-1))) / 2 for view in views)
    scores: Tensor = still / 2 + (first + second) / 4
    return scores
