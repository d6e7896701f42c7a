"""Layers that are not trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainer.contract.words import nearest
from trainer.core.job import JobError

BACKBONE = "backbone"
"""Stands for all layers but the last one with parameters, unless a layer has this name."""


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Exclude the layers of these names, and all within them, from the training.

    Raises JobError if a name is of no layer, or nothing is left to train.
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
    """Return the names of all layers around a parameter, and its own."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def head_of(model: nn.Module) -> str:
    """Return the name of the last layer with parameters of its own."""
    modules = model.named_modules()
    return [str(name) for name, each in modules if list(each.parameters(recurse=False))][-1]


def train_mode(model: nn.Module, frozen: Sequence[str] | None) -> None:
    """Set a model to training, but its frozen layers of BatchNorm to evaluation.

    Their statistics belong to their weights; as a part of what is frozen they do not change.
    """
    model.train()
    for each in model.modules() if frozen else ():
        own = list(each.parameters(recurse=False))
        if isinstance(each, _NormBase) and own and not any(one.requires_grad for one in own):
            each.eval()
