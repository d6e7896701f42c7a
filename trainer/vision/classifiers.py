"""The classifiers of torchvision.models, by name, and the initial weights of a training.

Shapes: N samples, S pixels a side, K classes; from images [N, 3, S, S] to scores [N, K].
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from trainer.contract.job import Train
from trainer.contract.models import PREFIX
from trainer.contract.words import nearest
from trainer.core.job import JobError
from trainer.data.files import DataMissingError, find_weights
from trainer.vision.cache import cached, named_weights

OPTIONS: dict[str, Any] = {
    # Without auxiliary heads, whose loss only training uses. The inputs are scaled as the published
    # weights require.
    "inception_v3": {"aux_logits": False, "transform_input": True, "init_weights": True},
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": True},
}
OF_OTHER_HEADS = ("AuxLogits.", "aux1.", "aux2.")
# torchvision's weights of DenseNet have parameter names from before PyTorch 0.4.1.
OLD_NAME = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)")

State = dict[str, Tensor]


def build(model: str, classes: int, side: int) -> nn.Module:
    """Build a classifier with random weights; raises JobError."""
    name = known_name(model)
    options: dict[str, Any] = dict(OPTIONS.get(name, {}))
    if name.startswith("vit_"):
        options["image_size"] = side
    if name.startswith("maxvit_"):
        options["input_size"] = (side, side)
    try:
        built: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    except (ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise JobError(f"train.model: {model} takes no images of {side}×{side}: {reason}") from None
    return built


def outline(model: str, classes: int, side: int) -> nn.Module:
    """Build a classifier on the meta device (fast), if possible; raises JobError."""
    try:
        with torch.device("meta"):
            return build(model, classes, side)
    except NotImplementedError:  # RegNet computes its widths with tensors.
        return build(model, classes, side)


def known_name(model: str) -> str:
    """Return torchvision's name of a classifier; raises JobError if there is none."""
    name = model.removeprefix(PREFIX)
    classifiers = models.list_models(module=models)
    if name in classifiers:
        return name
    if name in models.list_models():
        what = f"{name} is no classifier of images"
    else:
        what = f"torchvision {version()} has no {name}"
    raise JobError(f"train.model: {what}; {nearest(name, classifiers)}")


def version() -> str:
    """Return the version of torchvision."""
    from torchvision import __version__

    return str(__version__)


def starting_weights(train: Train, classes: int, side: int, root: Path) -> State | None:
    """Read a job's initial weights, without a head for other classes.

    This also checks that the model can be built, so that mistakes are reported before the
    rendezvous. Raises JobError or DataMissingError.
    """
    model = outline(train.model, classes, side)
    if not train.weights:
        return None
    if file := find_weights(train, root):
        where = str(file)
    else:
        found = named_weights(known_name(train.model), train.weights)
        file, where = cached(found, root), f"{train.weights} of {train.model}"
    return fitting(read_state(file, where), model, where, train.model)


def read_state(file: Path, where: str) -> State:
    """Read a file of torch.save that has weights, or a training's state with weights."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # Its class depends on the damage.
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        what = f"train.weights: {where} cannot be read: {reason}"
        fix = "it must be a state dict, written by torch.save(model.state_dict(), file)"
        raise DataMissingError(f"{what}; {fix}") from error
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise DataMissingError(f"train.weights: {where} holds no state dict of tensors")
    names = {name: re.sub(r"^(module|_orig_mod)\.", "", str(name)) for name in content}
    return {re.sub(OLD_NAME, r"\1\2", names[name]): content[name] for name in content}


def fitting(state: State, model: nn.Module, where: str, name: str) -> State:
    """Return the weights that fit a model: all, or all except a head for other classes."""
    wanted = model.state_dict()
    state = {key: each for key, each in state.items() if not key.startswith(OF_OTHER_HEADS)}
    head = head_of(model)
    others = [
        key
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape and not key.startswith(head)
    ]
    missing = [
        key
        for key in wanted
        if key not in state and not key.startswith(head) and "num_batches" not in key
    ]
    unknown = [key for key in state if key not in wanted and not key.startswith(head)]
    for what, keys in (
        ("lacks", missing),
        ("has besides", unknown),
        ("has other sizes of", others),
    ):
        if keys:
            some = f"{', '.join(keys[:3])}{f' and {len(keys) - 3} more' * (len(keys) > 3)}"
            raise DataMissingError(f"train.weights: {where} is not of {name}: it {what} {some}")
    own = {key for key in wanted if key.startswith(head)}
    keep_head = all(key in state and state[key].shape == wanted[key].shape for key in own)
    return {key: state[key] for key in wanted if key in state and (keep_head or key not in own)}


def head_of(model: nn.Module) -> str:
    """Return the prefix of the last layer's parameters: a linear one or, in SqueezeNet, a 1x1."""
    layers = (n for n, each in model.named_modules() if isinstance(each, (nn.Linear, nn.Conv2d)))
    return f"{list(layers)[-1]}."
