"""The default values of each model's training, where the job sets none. Standard library only.

A recipe has the rate for its own global batch; for another one, it is scaled (batch.py). A job
overrides its recipe key by key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer.contract.gpt import gpt_of
from trainer.contract.models import PREFIX, of_torchvision

Optimizer = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The keys of `train:` from a model's recipe, and their source."""

    source: str
    optimizer: Optimizer
    learning_rate: float  # For a global batch of `rate_batch`.
    rate_batch: int
    rate_limit: float  # Maximum of the scaled rate.
    weight_decay: float
    schedule: Literal["constant", "cosine", "triangle"] = "cosine"
    final_rate: float | None = None  # Share of the rate at the end of a cosine.
    warm_up: float | None = 0.05
    clip_norm: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    decays_all: bool = False  # Whether norms and biases have the weight decay too.


RESIDUAL = Recipe(
    source="He et al. 2015 (arXiv 1512.03385), with the linear scaling and the warm-up of Goyal et "
    "al. 2017 (arXiv 1706.02677)",
    optimizer="sgd",
    learning_rate=0.1,
    rate_batch=256,
    rate_limit=3.2,
    weight_decay=1e-4,
)
"""Networks with BatchNorm, which are stable at this rate."""
PLAIN = replace(
    RESIDUAL,
    source="torchvision's references for AlexNet and VGG",
    learning_rate=0.01,
    rate_limit=0.08,
    clip_norm=5.0,
)
"""Deep networks without normalisation."""
SMALL = Recipe(
    source="measured on digits (make bench-defaults), scaled as in arXiv 2205.10287",
    optimizer="adamw",
    learning_rate=6e-3,
    rate_batch=256,
    rate_limit=1e-2,
    weight_decay=0.01,
    clip_norm=1.0,
)
"""Small networks without normalisation: momentum at the rate of a ResNet ends in dead units."""
TRANSFORMER = Recipe(
    source="torchvision's references for ViT (DeiT, arXiv 2012.12877)",
    optimizer="adamw",
    learning_rate=1e-3,
    rate_batch=1024,
    rate_limit=3e-3,
    weight_decay=0.05,
    clip_norm=1.0,
)
LANGUAGE = Recipe(
    source="nanoGPT (config/train_shakespeare_char.py and train.py), by the width between them",
    optimizer="adamw",
    learning_rate=2e-3,
    rate_batch=16,
    rate_limit=4e-3,
    weight_decay=0.1,
    final_rate=0.1,
    clip_norm=1.0,
    beta1=0.9,
    beta2=0.99,
)
"""At a width of 128, the smallest of the presets."""
AIRBENCH = Recipe(
    source="airbench94 (Jordan 2024, arXiv 2404.00498)",
    optimizer="sgd",
    learning_rate=1.5,
    rate_batch=1024,
    rate_limit=3.0,
    weight_decay=0.00133,
    schedule="triangle",
    warm_up=None,
    decays_all=True,
)
UNKNOWN = Recipe(
    source="torch's own defaults of AdamW, with a warm-up: they train most models",
    optimizer="adamw",
    learning_rate=1e-3,
    rate_batch=256,
    rate_limit=2e-3,
    weight_decay=0.01,
)
"""For a custom model."""
BY_NAME = {
    "cnn": SMALL,
    "lenet": SMALL,
    "resnet18": RESIDUAL,
    "airbench": AIRBENCH,
}
TRANSFORMERS = ("vit_", "swin_", "maxvit_", "convnext_")
WITHOUT_NORMS = ("alexnet", "vgg", "squeezenet")
"""Prefixes of torchvision's models; VGG's variants with BatchNorm are included."""
WIDTH = 128
"""Of `LANGUAGE`. nanoGPT has 1e-3 for 384 and 6e-4 for 768, which fits the same power law: the rate
falls with the width to the power of two thirds."""
FINE = 0.1
"""The share of the rate for pretrained weights."""


def recipe_of(
    model: str, options: Any, *, fine: bool = False, optimizer: Optimizer | None = None
) -> Recipe:
    """Return a model's recipe; for another `optimizer`, the usual recipe of this optimizer.

    `fine`: whether the training starts from pretrained weights.
    """
    found = _by_model(model, options)
    if optimizer and optimizer != found.optimizer:
        usual = found if "sgd" not in (optimizer, found.optimizer) else UNKNOWN
        usual = RESIDUAL if optimizer == "sgd" else usual
        own = {name: getattr(found, name) for name in ("clip_norm", "final_rate", "schedule")}
        # adam adds the decay to the gradients, where its averages cancel the effect.
        decay = 0.0 if optimizer == "adam" else usual.weight_decay
        found = replace(usual, optimizer=optimizer, weight_decay=decay, **own)
    if fine:
        rate, limit = FINE * found.learning_rate, FINE * found.rate_limit
        found = replace(found, learning_rate=rate, rate_limit=limit)
    return found


def optimizer_of(model: str, rate: float | None) -> Optimizer:
    """Return the optimizer of a job that names none.

    If a job sets the rate, the default is SGD, as most such rates are of its size; for gpt it is
    the recipe's optimizer.
    """
    recipe = _by_model(model, None)
    return recipe.optimizer if rate is None or model == "gpt" else "sgd"


def _by_model(model: str, options: Any) -> Recipe:
    if model == "gpt":
        return _of_gpt(options)
    if of_torchvision(model):
        name = model.removeprefix(PREFIX)
        if name.startswith(TRANSFORMERS):
            return TRANSFORMER
        return PLAIN if name.startswith(WITHOUT_NORMS) else RESIDUAL
    return BY_NAME.get(model, UNKNOWN)


def _of_gpt(options: Any) -> Recipe:
    """Return the recipe of a gpt: the rate decreases with the width."""
    try:
        width = max(WIDTH, gpt_of(options).width)
    except (TypeError, ValueError, KeyError):  # A rule reports the invalid options.
        return LANGUAGE
    share = (WIDTH / width) ** (2 / 3)
    rate, limit = (
        float(f"{share * each:.2g}") for each in (LANGUAGE.learning_rate, LANGUAGE.rate_limit)
    )
    return replace(LANGUAGE, learning_rate=rate, rate_limit=limit)


def filled(train: Any) -> dict[str, Any]:
    """Return the values of the keys that a job does not set, from the recipe of its model."""
    optimizer = train.optimizer or optimizer_of(train.model, train.learning_rate)
    recipe = recipe_of(train.model, train.options, fine=bool(train.weights), optimizer=optimizer)
    schedule = train.schedule or recipe.schedule
    wanted: dict[str, Any] = {"optimizer": optimizer, "schedule": schedule}
    wanted |= {"weight_decay": recipe.weight_decay, "clip_norm": recipe.clip_norm}
    if train.learning_rate is None:
        wanted |= {"learning_rate": recipe.learning_rate}
        if train.rate_batch is None:
            wanted |= {"rate_batch": recipe.rate_batch, "rate_limit": recipe.rate_limit}
    if schedule != "triangle":
        wanted["warm_up"] = recipe.warm_up or RESIDUAL.warm_up
    if schedule == "cosine":
        wanted["final_rate"] = recipe.final_rate
    if optimizer != "sgd":
        wanted |= {"beta1": recipe.beta1, "beta2": recipe.beta2}
    if recipe.decays_all:
        decay = recipe.weight_decay if train.weight_decay is None else train.weight_decay
        wanted |= {"norm_weight_decay": decay, "bias_weight_decay": decay}
    return {
        name: value
        for name, value in wanted.items()
        if value is not None and getattr(train, name) is None
    }
