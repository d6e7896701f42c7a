"""The rules between the keys of a job whose ranks divide the model; see rules.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

from trainer.contract.gpt import gpt_fault, gpt_of
from trainer.contract.job import Parallel
from trainer.contract.problem import Problem, Values, Written


def parallel_of(values: Values) -> Parallel:
    """Return the section of the values of all keys."""
    return Parallel(**{each.name: values[f"parallel.{each.name}"] for each in fields(Parallel)})


PLAIN = {
    "exchange.mode": "every_step",
    "exchange.compression": "none",
    "exchange.static_graph": False,
    "train.ema": False,
    "train.ema_decay": None,
    "train.freeze": None,
    "train.compile": False,
    "train.balance": "even",
    "faults.repeat_above": None,
}
"""Keys that need a whole model on each rank, with their values that do not."""


def divided_training_is_plain(values: Values, _: Written) -> Iterator[Problem]:
    """These keys need the whole model on each rank."""
    if not parallel_of(values).used:
        return
    for name, usual in PLAIN.items():
        if values[name] != usual:
            section, key = name.split(".")
            what = "needs the whole model on each rank, unlike `parallel:`"
            yield Problem(section, key, what, "leave one of them out")
    if values["train.precision"] == "fp16":
        fix = "write bf16 or fp32, or leave one of them out"
        yield Problem("train", "precision", "fp16 is not for `parallel:`", fix)


def only_gpt_is_divided_inside(values: Values, _: Written) -> Iterator[Problem]:
    """The trainer can divide the GPT's blocks, but not those of other models."""
    wish = parallel_of(values)
    for name in ("tensor", "pipeline"):
        if (getattr(wish, name) or 1) > 1 and values["train.model"] != "gpt":
            fix = "leave it out; `shard` divides any model"
            yield Problem("parallel", name, "is for `model: gpt`", fix)


def gpt_can_be_divided(values: Values, _: Written) -> Iterator[Problem]:
    """Heads and blocks are not divided, and stages of a pipeline do not share weights."""
    if values["train.model"] != "gpt" or gpt_fault(values["train.options"] or {}):
        return
    wish, gpt = parallel_of(values), gpt_of(values["train.options"])
    tensor, pipeline = wish.tensor or 1, wish.pipeline or 1
    if gpt.heads % tensor:
        what = f"{tensor} ranks cannot share the model's {gpt.heads} heads evenly"
        fix = f"use a divisor: {', '.join(str(n) for n in _divisors(gpt.heads))}"
        yield Problem("parallel", "tensor", what, fix)
    if pipeline > gpt.layers:
        what = f"{pipeline} stages need as many blocks, the model has {gpt.layers}"
        yield Problem("parallel", "pipeline", what, f"write `pipeline: {gpt.layers}` or less")
    elif pipeline > 1 and gpt.tied:
        what = "the first stage and the last have the same weights"
        yield Problem("parallel", "pipeline", what, "write `options: {tied: false}` in `train:`")


def stages_have_micro_steps(values: Values, _: Written) -> Iterator[Problem]:
    """With fewer micro-batches than stages, some stages would always be idle."""
    stages, steps = values["parallel.pipeline"] or 1, values["train.accumulation"]
    if stages > 1 and values["train.global_batch"] is not None:
        what = "the micro-steps of a pipeline do not follow from the hosts"
        yield Problem("train", "global_batch", what, "write `accumulation` instead")
    elif stages > steps:
        what = f"{stages} stages need as many micro-steps or more, not {steps}"
        fix = f"write for example `accumulation: {4 * stages}` in `train:`"
        yield Problem("parallel", "pipeline", what, fix)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


RULES: tuple[Callable[[Values, Written], Iterator[Problem]], ...] = (
    divided_training_is_plain,
    only_gpt_is_divided_inside,
    gpt_can_be_divided,
    stages_have_micro_steps,
)
