"""The rules between the keys of a job, for YAML and for the job file.

A rule that reads a key without a valid value reports nothing. Those for images alone are in
image_rules.py, those of `parallel:` in parallel_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields

from trainer.contract import image_rules, parallel_rules
from trainer.contract.gpt import gpt_fault
from trainer.contract.job import LOCAL_MODE, SECTIONS
from trainer.contract.keys import about, section_name
from trainer.contract.models import (
    DOWNLOADED,
    LEAST_SIDE,
    MIRRORED,
    OWN_DATA,
    PHOTOGRAPHS,
    SIDES,
    input_side,
    is_weights_name,
    of_torchvision,
)
from trainer.contract.own import is_own
from trainer.contract.parallel_rules import parallel_of
from trainer.contract.problem import Problem, Values, Written

KEYS = tuple((section_name(kind), each) for kind in SECTIONS for each in fields(kind))
"""The section and the field of every key."""


def problems(values: Values, written: Written) -> Iterator[Problem]:
    """Yield the problems that all rules find."""
    for rule in RULES:
        with suppress(KeyError):
            yield from rule(values, written)


def keys_have_a_use(values: Values, written: Written) -> Iterator[Problem]:
    """A key that is for some values of another key must not be set with other values."""
    for section, each in KEYS:
        name, only = f"{section}.{each.name}", about(each).only
        if only is None or name not in written or not {name, only.of} <= values.keys():
            continue
        unused = values[name] is None or values[name] is each.default is False
        if not unused and not only.admits(values[only.of]):
            yield Problem(section, each.name, only.what, only.fix)


def path_leads_to_own_data(values: Values, _: Written) -> Iterator[Problem]:
    """Only custom data have a path, and need one; shards may have an address."""
    dataset, path = values["train.dataset"], values["train.path"]
    if not path and dataset in OWN_DATA and not values["train.url"]:
        example = "shakespeare.txt" if dataset == "text" else "flowers"
        fix = f"write for example `path: {example}`, below the data folder"
        yield Problem("train", "path", "is missing", fix)
    if path and dataset not in OWN_DATA:
        what = "finds its files itself" if is_own(dataset) else "is found by its name"
        yield Problem("train", "path", f"{dataset} {what}", "leave it out")


def url_leads_to_shards(values: Values, _: Written) -> Iterator[Problem]:
    """Only shards are fetched during the training, from one place."""
    url = values["train.url"]
    if url is None:
        return
    if values["train.dataset"] != "shards":
        yield Problem("train", "url", "is for `dataset: shards`", "leave it out")
    elif values["train.path"]:
        yield Problem("train", "path", "is left out with `url`", "write one of them")
    elif not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        fix = "write for example `url: http://pc1:8080/imagenet`, without user and password"
        yield Problem("train", "url", f"{url!r} is not an address of a folder", fix)


def validation_is_of_known_data(values: Values, _: Written) -> Iterator[Problem]:
    """A custom function returns its parts itself."""
    if values["train.validation"] and is_own(values["train.dataset"]):
        fix = "leave it out, and return the validation part instead of the test part"
        yield Problem("train", "validation", "is for the trainer's own data sets", fix)


def image_size_is_of_a_folder(values: Values, written: Written) -> Iterator[Problem]:
    """Images of other data sets have a fixed size."""
    dataset = values["train.dataset"]
    if "train.image_size" in written and dataset not in PHOTOGRAPHS:
        side = SIDES.get(dataset)
        known = f"images of {dataset} are {side}×{side} already"
        yield Problem(
            "train", "image_size", known if side else "is for `dataset: folder`", "leave it out"
        )


def image_size_fits_the_model(values: Values, _: Written) -> Iterator[Problem]:
    """The trainer's models halve the side twice; torchvision's were designed for photographs."""
    side, model = values["train.image_size"], values["train.model"]
    if values["train.dataset"] not in PHOTOGRAPHS:
        return
    if of_torchvision(model):
        if side < LEAST_SIDE:
            usual = max(224, input_side(model, side))
            what = f"images of {side}×{side} are too small for {model}"
            yield Problem("train", "image_size", what, f"write for example `image_size: {usual}`")
    elif side % 4 and not is_own(model):
        fix = "write for example `image_size: 32`"
        yield Problem("train", "image_size", f"{side} is not a multiple of 4", fix)


def tokens_are_of_a_text(values: Values, _: Written) -> Iterator[Problem]:
    """Only texts have tokens, and need a gpt or custom data; only some have a separator."""
    tokenizer, model = values["train.tokenizer"], values["train.model"]
    if tokenizer and values["train.dataset"] != "text":
        yield Problem("train", "tokenizer", "is for `dataset: text`", "leave it out")
    elif tokenizer and is_own(model):
        fix = "write `model: gpt`, or a function for the data, `dataset: mymodel:data`"
        yield Problem("train", "tokenizer", "is for `model: gpt`", fix)
    separator = values["train.separator"]
    if separator is not None and not tokenizer:
        fix = "leave it out, or write `tokenizer: bpe`"
        yield Problem("train", "separator", "is for texts as tokens", fix)
    elif (separator is not None and separator != separator.strip()) or separator == "":
        fix = 'write for example `separator: "<|endoftext|>"`'
        yield Problem("train", "separator", "is not a line with text", fix)


def model_fits_data(values: Values, _: Written) -> Iterator[Problem]:
    """A model takes one kind of data, and images of certain sizes."""
    dataset, model = values["train.dataset"], values["train.model"]
    if found := _misfit(dataset, model):
        yield Problem("train", "model", *found)
    elif (
        dataset in PHOTOGRAPHS
        and model in {"lenet", "airbench"}
        and values["train.image_size"] != 32
    ):
        fix = "write `image_size: 32`, or `model: resnet18`"
        yield Problem("train", "model", f"{model} needs images of 32×32", fix)


def _misfit(dataset: str, model: str) -> tuple[str, str] | None:
    if is_own(dataset) and not is_own(model):
        fix = "write for example `model: mymodel:build`"
        return f"{model} is for the trainer's data sets, not for {dataset}", fix
    if is_own(model):
        return None
    if dataset == "text" and model != "gpt":
        return f"{model} is for images", "write `model: gpt`"
    if model == "gpt" and dataset != "text":
        return "gpt is for text", "write for example `model: cnn`"
    # lenet's two 5x5 convolutions need more than 8x8 pixels; resnet18 reduces 8x8 to one pixel, and
    # BatchNorm cannot train on one sample of one pixel.
    if dataset == "digits" and model != "cnn" and not of_torchvision(model):
        return f"{model} needs larger images than the 8×8 of digits", "write `model: cnn`"
    if dataset in {"mnist", "fashion_mnist"} and model == "airbench":
        return "airbench needs colour images", "write for example `model: resnet18`"
    return None


def options_are_of_the_model(values: Values, _: Written) -> Iterator[Problem]:
    """They are for custom functions, and for gpt."""
    options, model = values["train.options"], values["train.model"]
    if options is None or is_own(model):
        return
    if model != "gpt":
        fix = "leave it out, or write for example `model: mymodel:build`"
        yield Problem("train", "options", "is for models of your own, and for gpt", fix)
    elif fault := gpt_fault(options):
        yield Problem("train", "options", *fault)


def weights_are_of_torchvision(values: Values, _: Written) -> Iterator[Problem]:
    """The trainer's models are small: they begin with random weights."""
    if values["train.weights"] and not of_torchvision(values["train.model"]):
        fix = "leave it out, or write for example `model: torchvision/resnet18`"
        yield Problem("train", "weights", "is for models of torchvision", fix)


def download_has_a_source(values: Values, _: Written) -> Iterator[Problem]:
    """Only data sets and weights with an address in torchvision can be downloaded."""
    dataset, weights = values["train.dataset"], values["train.weights"]
    if not values["train.download"] or dataset in DOWNLOADED:
        return
    if not (weights and is_weights_name(weights)):
        what = f"nothing of this job can be downloaded: torchvision has no {dataset}"
        fix = f"leave it out; it is for {', '.join(DOWNLOADED)}, and for weights by name"
        yield Problem("train", "download", what, fix)


def mirror_shows_the_same(values: Values, _: Written) -> Iterator[Problem]:
    """A mirrored digit is no longer the same digit."""
    dataset = values["train.dataset"]
    if values["train.flip_at_test"] and dataset not in MIRRORED:
        what = (
            "is for images"
            if dataset == "text" or is_own(dataset)
            else f"mirrored {dataset} are other signs"
        )
        yield Problem("train", "flip_at_test", what, "leave it out")


def global_batch_is_instead_of_others(values: Values, written: Written) -> Iterator[Problem]:
    """A fixed global batch determines the micro-steps."""
    if values["train.global_batch"] is None:
        return
    if "train.accumulation" in written:
        what = "`global_batch` determines the micro-steps"
        yield Problem("train", "accumulation", what, "leave one of them out")


def warm_up_is_steps_or_a_share(values: Values, _: Written) -> Iterator[Problem]:
    """Steps are whole numbers; a triangle schedule has its own warm-up."""
    warm_up = values["train.warm_up"]
    if not warm_up:
        return
    if warm_up > 1 and warm_up != int(warm_up):
        fix = f"write `warm_up: {warm_up:.0f}`, or a share below 1 such as 0.05"
        yield Problem("train", "warm_up", f"{warm_up} is no whole number of steps", fix)
    if values["train.schedule"] == "triangle":
        fix = "leave it out, or write `schedule: cosine`"
        yield Problem("train", "warm_up", "`schedule: triangle` warms up by itself", fix)


def average_needs_equal_weights(values: Values, _: Written) -> Iterator[Problem]:
    """In the local modes each rank has different weights."""
    mode = values["exchange.mode"]
    averages = {"ema": values["train.ema"], "ema_decay": values["train.ema_decay"] is not None}
    for name in (name for name, used in averages.items() if used and mode != "every_step"):
        what = f"`{name}` needs the same weights on all ranks at every step, unlike {mode}"
        yield Problem("train", name, what, "leave one of them out")


def compression_is_of_gradients(values: Values, _: Written) -> Iterator[Problem]:
    """PowerSGD is for gradients; the local modes exchange parameters."""
    mode = values["exchange.mode"]
    if values["exchange.compression"] == "powersgd" and mode != "every_step":
        what = f"powersgd compresses gradients, and {mode} exchanges parameters"
        fix = "write `compression: fp16`, or `mode: every_step`"
        yield Problem("exchange", "compression", what, fix)


def warm_up_is_before_another_way(values: Values, written: Written) -> Iterator[Problem]:
    """A warm-up of plain steps precedes a local mode or compression only."""
    plain = values["exchange.mode"] == "every_step"
    if "exchange.warm_up_steps" in written and plain:
        if values["exchange.compression"] == "powersgd":
            return
        what = "is for the modes with local steps, and for powersgd"
        yield Problem("exchange", "warm_up_steps", what, LOCAL_MODE)


def norms_are_synchronised_in_every_step(values: Values, _: Written) -> Iterator[Problem]:
    """Synchronised norms need all ranks in each step, and the model on each rank."""
    divided = any(values[f"parallel.{name}"] for name in ("shard", "tensor", "pipeline"))
    if values["train.sync_batch_norm"] and (values["exchange.mode"] != "every_step" or divided):
        fix = "leave it out, or write `exchange: {mode: every_step}` without `parallel`"
        yield Problem("train", "sync_batch_norm", "is for replicas that exchange each step", fix)


def static_graph_is_of_every_step(values: Values, _: Written) -> Iterator[Problem]:
    """Steps without an exchange, and accumulation, have a different graph."""
    if not values["exchange.static_graph"]:
        return
    if values["exchange.mode"] != "every_step":
        yield Problem("exchange", "static_graph", "is for `mode: every_step`", "leave it out")
    elif values["train.accumulation"] > 1 or values["train.global_batch"]:
        other = "global_batch" if values["train.global_batch"] else "accumulation"
        what = f"PyTorch cannot take it together with `{other}`"
        yield Problem("exchange", "static_graph", what, "leave one of them out")


def buckets_are_of_ddp(values: Values, written: Written) -> Iterator[Problem]:
    """FSDP has no buckets: it exchanges block by block."""
    if "exchange.bucket_mib" in written and parallel_of(values).used:
        yield Problem("exchange", "bucket_mib", "`parallel:` exchanges without DDP", "leave it out")


def comparisons_are_of_equal_ranks(values: Values, written: Written) -> Iterator[Problem]:
    """In the local modes the gradients of ranks differ, and between exchanges their parameters."""
    mode = values["exchange.mode"]
    for key, usual in (("repeat_above", None), ("compare_every", 0)):
        used = f"faults.{key}" in written and values[f"faults.{key}"] != usual
        if used and mode != "every_step":
            fix = "leave one of them out" if key == "repeat_above" else "leave it out"
            yield Problem("faults", key, f"is for `mode: every_step`, unlike {mode}", fix)


def files_are_of_a_script(values: Values, written: Written) -> Iterator[Problem]:
    """The built-in training saves and fetches its own checkpoints."""
    if values["checkpoint.files"] is not None and "train.dataset" in written:
        fix = "leave it out: the built-in training saves by itself"
        yield Problem("checkpoint", "files", "is for `command`", fix)


def checkpoints_are_of_the_training(_: Values, written: Written) -> Iterator[Problem]:
    """A script saves when it wants; kit keeps versions of its files."""
    if any(name.startswith("train.") for name in written):
        return
    for key in ("every_epochs", "asynchronous"):
        if f"checkpoint.{key}" in written:
            fix = "leave it out: a script saves by itself"
            yield Problem("checkpoint", key, "is for `train`", fix)
    if "checkpoint.keep" in written and "checkpoint.files" not in written:
        fix = "name the files that the script saves, as in `files: [snapshot.pt]`"
        yield Problem("checkpoint", "keep", "counts versions of `files`", fix)


RULES: tuple[Callable[[Values, Written], Iterator[Problem]], ...] = (
    keys_have_a_use,
    path_leads_to_own_data,
    url_leads_to_shards,
    image_size_is_of_a_folder,
    image_size_fits_the_model,
    validation_is_of_known_data,
    tokens_are_of_a_text,
    model_fits_data,
    options_are_of_the_model,
    weights_are_of_torchvision,
    download_has_a_source,
    mirror_shows_the_same,
    global_batch_is_instead_of_others,
    warm_up_is_steps_or_a_share,
    average_needs_equal_weights,
    compression_is_of_gradients,
    warm_up_is_before_another_way,
    norms_are_synchronised_in_every_step,
    static_graph_is_of_every_step,
    buckets_are_of_ddp,
    comparisons_are_of_equal_ranks,
    files_are_of_a_script,
    checkpoints_are_of_the_training,
    *parallel_rules.RULES,
    *image_rules.RULES,
)
