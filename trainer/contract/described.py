"""Describes how a job trains, for `kit plan` and the beginning of the log."""

from __future__ import annotations

from trainer.contract.batch import rate_factor
from trainer.contract.image_rules import crops_at_random
from trainer.contract.job import Train
from trainer.contract.models import CROPPED, DATASETS, PHOTOGRAPHS
from trainer.contract.recipes import recipe_of


def mirrors(train: Train) -> bool:
    """Whether half of the training images are mirrored.

    Mirrored photographs keep their class; signs, digits and letters do not. A folder may have both.
    """
    return train.mirror if train.mirror is not None else train.dataset not in PHOTOGRAPHS


def how_it_steps(train: Train, samples: int) -> str:
    """Describe the optimizer and its rate with a global batch of `samples`."""
    factor = rate_factor(train, samples)
    rate = f"{train.optimizer} at {train.learning_rate * factor:.3g}"
    if train.rate_batch is not None and factor != 1:
        kept = "" if _scales(train, samples) else f", its limit {train.rate_limit:g}"
        rate += f" ({train.learning_rate:g} for a batch of {train.rate_batch}{kept})"
    warm = _amount(train.warm_up)
    parts = [rate, f"warm-up of {warm}" if warm else "", _schedule(train)]
    parts.append(f"weight decay {train.weight_decay:g}")
    parts.append(f"clipped to {train.clip_norm:g}" if train.clip_norm else "")
    fine = bool(train.weights)
    recipe = recipe_of(train.model, train.options, fine=fine, optimizer=train.optimizer)
    own = train.rate_batch is None or train.learning_rate != recipe.learning_rate
    chosen = "the rate is the job's own" if own else recipe.source
    return f"{', '.join(filter(None, parts))}; {chosen}"


def _scales(train: Train, samples: int) -> bool:
    """Whether the rate depends on the batch, and is below its limit."""
    limit = train.rate_limit
    return limit is None or train.learning_rate * rate_factor(train, samples) < limit


def _amount(warm_up: float | None) -> str:
    if not warm_up:
        return ""
    return f"{100 * warm_up:.3g} %" if warm_up < 1 else f"{warm_up:.0f} steps"


def _schedule(train: Train) -> str:
    end = f" to {train.final_rate:g} of it" if train.final_rate else ""
    return f"{train.schedule}{end}" if train.schedule != "constant" else "then constant"


def augmentations(train: Train) -> str:
    """List the augmentations of training images; "" if there are none or they are unknown."""
    if train.dataset not in DATASETS or train.dataset == "text":
        return ""
    random = crops_at_random(train.dataset, train.model, train.augmentation)
    moved = "cropped at random" if random else "shifted at random"
    found = [moved] if train.dataset in CROPPED else []
    if train.dataset in CROPPED:
        found.append("mirrored" if mirrors(train) else "not mirrored")
    found += [f"policy {train.augmentation}"] if train.augmentation else []
    found += [f"{train.repeated_augmentation} copies"] if train.repeated_augmentation else []
    shares = {"random_erasing": "erasing", "mixup": "mixup", "cutmix": "cutmix"}
    given = ((word, getattr(train, name)) for name, word in shares.items())
    return ", ".join([*found, *(f"{word} {value:g}" for word, value in given if value is not None)])
