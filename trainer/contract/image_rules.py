"""The rules between the keys of a job for the training of images; see rules.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainer.contract.models import ONE_SIDE, PHOTOGRAPHS, PREFIX, is_weights_name, of_torchvision
from trainer.contract.own import is_own
from trainer.contract.problem import Problem, Values, Written
from trainer.contract.recipes import optimizer_of, recipe_of

OF_CROPS = ("crop_scale", "decode", "repeated_augmentation")
OF_IMAGES = ("random_erasing", "mixup", "cutmix")


def crops_at_random(dataset: str, model: str, augmentation: str | None) -> bool:
    """Whether training images are random crops by torchvision's transforms."""
    return dataset in PHOTOGRAPHS and bool(augmentation or of_torchvision(model))


def crops_are_random(values: Values, _: Written) -> Iterator[Problem]:
    """Without a policy, the trainer's own models get centre crops that are shifted."""
    names = ("train.dataset", "train.model", "train.augmentation")
    dataset, *_rest = settings = [values[name] for name in names]
    if dataset not in PHOTOGRAPHS or crops_at_random(*settings):
        return
    used = [name for name in OF_CROPS if values[f"train.{name}"] is not None]
    if values["train.interpolation"] and not values["train.test_resize"]:
        used.append("interpolation")
    for name in used:
        fix = "leave it out, or write for example `augmentation: trivial`"
        yield Problem("train", name, "is for random crops", fix)


def mixing_is_of_images(values: Values, _: Written) -> Iterator[Problem]:
    """Texts have no boxes, and custom data may have any form."""
    dataset = values["train.dataset"]
    if dataset == "text" or is_own(dataset):
        for name in OF_IMAGES:
            if values[f"train.{name}"] is not None:
                what = "is for the trainer's own data sets of images"
                yield Problem("train", name, what, "leave it out")


def transform_is_of_weights(values: Values, _: Written) -> Iterator[Problem]:
    """Only weights of torchvision have a transform."""
    if values["train.test_transform"] is None:
        return
    weights = values["train.weights"]
    if not weights or not is_weights_name(weights):
        fix = "write for example `weights: IMAGENET1K_V2`, or `test_resize: 232` instead"
        yield Problem("train", "test_transform", "is for weights by name", fix)
    for name in ("test_image_size", "test_resize"):
        if values[f"train.{name}"] is not None:
            what = "`test_transform: weights` determines it"
            yield Problem("train", name, what, "leave one of them out")


def tested_images_fit(values: Values, _: Written) -> Iterator[Problem]:
    """A crop is at most as large as the resized image, and at least as large as training images."""
    side, tested, resized = (
        values[f"train.{name}"] for name in ("image_size", "test_image_size", "test_resize")
    )
    crop = tested or side
    if resized is not None and resized < crop:
        fix = f"write for example `test_resize: {round(crop * 256 / 224)}`"
        yield Problem("train", "test_resize", f"{resized} is less than the crop of {crop}", fix)
    if tested is None or tested == side:
        return
    model = values["train.model"]
    if tested < side:
        what = f"{tested} is less than `image_size: {side}`"
        yield Problem("train", "test_image_size", what, f"write {side} or more, or leave it out")
    elif not of_torchvision(model) or model.removeprefix(PREFIX).startswith(ONE_SIDE):
        what = f"{model} takes images of one size"
        yield Problem("train", "test_image_size", what, "leave it out")


def optimizer_has_the_keys(values: Values, _: Written) -> Iterator[Problem]:
    """Adam has no Nesterov momentum, and SGD has no betas."""
    rate = values["train.learning_rate"]
    optimizer = values["train.optimizer"] or optimizer_of(values["train.model"], rate)
    if values["train.nesterov"] is not None and optimizer != "sgd":
        yield Problem("train", "nesterov", "is for `optimizer: sgd`", "leave it out")
    for name in ("beta1", "beta2"):
        if values[f"train.{name}"] is not None and optimizer == "sgd":
            yield Problem("train", name, "is for `optimizer: adamw`", "leave it out")


def floor_is_of_a_cosine(values: Values, _: Written) -> Iterator[Problem]:
    """Only a cosine schedule has a final rate."""
    schedule = values["train.schedule"] or recipe_of(values["train.model"], None).schedule
    if values["train.final_rate"] is not None and schedule != "cosine":
        yield Problem("train", "final_rate", "is for `schedule: cosine`", "leave it out")


def limit_is_of_a_scaled_rate(values: Values, _: Written) -> Iterator[Problem]:
    """A rate that is not scaled needs no limit."""
    own = values["train.learning_rate"] is not None and values["train.rate_batch"] is None
    if values["train.rate_limit"] is not None and own:
        fix = "write `rate_batch` too, or leave it out"
        yield Problem("train", "rate_limit", "is for a rate that is scaled", fix)


def start_is_of_a_warm_up(values: Values, _: Written) -> Iterator[Problem]:
    """Without a warm-up the rate does not rise."""
    schedule = values["train.schedule"] or recipe_of(values["train.model"], None).schedule
    none = values["train.warm_up"] == 0 or schedule == "triangle"
    if values["train.warm_up_start"] is not None and none:
        fix = "write for example `warm_up: 0.05`, or leave it out"
        yield Problem("train", "warm_up_start", "is for a warm-up", fix)


def one_average_is_tested(values: Values, _: Written) -> Iterator[Problem]:
    """Lookahead and the exponential moving average both replace the tested weights."""
    if values["train.ema"] and values["train.ema_decay"] is not None:
        what = "`ema` is another average of the weights"
        yield Problem("train", "ema_decay", what, "leave one of them out")


RULES: tuple[Callable[[Values, Written], Iterator[Problem]], ...] = (
    crops_are_random,
    mixing_is_of_images,
    transform_is_of_weights,
    tested_images_fit,
    optimizer_has_the_keys,
    floor_is_of_a_cosine,
    limit_is_of_a_scaled_rate,
    start_is_of_a_warm_up,
    one_average_is_tested,
)
