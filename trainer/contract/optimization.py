"""The keys of `train:` for the optimizer: its batches, its rates, and averages of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.contract.keys import key


@dataclass(frozen=True, kw_only=True)
class OptimizationKeys:
    """The number and the size of the optimizer's steps."""

    epochs: int = key(ge=1, examples=(10,))
    batch_size: int = key(ge=1, examples=(256,), description="Samples per GPU in each micro-step")
    accumulation: int = key(
        1,
        ge=1,
        description="Micro-steps per optimizer step: the global batch is `batch_size` x ranks x "
        "`accumulation`",
    )
    global_batch: int | None = key(
        None,
        ge=1,
        examples=(768,),
        description="Samples per optimizer step for any number of hosts: ranks take the necessary "
        "number of micro-steps of at most `batch_size`. Instead of `accumulation`",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = key(
        None,
        description="Default: from the model's recipe; sgd if the job sets a learning rate, for "
        "gpt adamw",
    )
    learning_rate: float = key(
        None,
        gt=0,
        examples=(0.1,),
        description="Highest learning rate, for a global batch of `rate_batch`; default: from the "
        "model's recipe",
    )
    rate_batch: int | None = key(
        None,
        ge=1,
        examples=(768,),
        description="Global batch for which `learning_rate` is valid. For another one, for example "
        "after the loss of a host, kit scales the rate: linearly for sgd, by the square root for "
        "adam and adamw. Default: from the recipe; none if the job sets a learning rate",
    )
    rate_limit: float | None = key(
        None,
        gt=0,
        examples=(3.2,),
        description="With `rate_batch`: maximum of the scaled learning rate; default: from the "
        "recipe; none if the job sets a learning rate",
    )
    nesterov: bool | None = key(None, description="For sgd: Nesterov momentum; default: true")
    beta1: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.9,),
        description="For adam and adamw: decay of the mean of the gradients; default: from the "
        "model's recipe, or 0.9",
    )
    beta2: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.95,),
        description="For adam and adamw: decay of the mean of the squared gradients; default: from "
        "the model's recipe, or 0.999",
    )
    weight_decay: float = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="Weight decay of matrices and convolutions, not of normalisation layers, "
        "biases and embeddings; default: from the model's recipe",
    )
    norm_weight_decay: float | None = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="Weight decay of normalisation layers; default: 0, for airbench `weight_decay`",
    )
    bias_weight_decay: float | None = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="Weight decay of other layers' biases; default: 0, for airbench `weight_decay`",
    )
    schedule: Literal["constant", "cosine", "triangle"] = key(
        None,
        description="cosine: decreases to `final_rate`. triangle: rises linearly, then decreases "
        "linearly to the end. Default: from the model's recipe, mostly cosine",
    )
    final_rate: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.1,),
        description="For cosine: final fraction of the learning rate; default: 0.1 for gpt, else 0",
    )
    warm_up: float | None = key(
        None,
        ge=0,
        examples=(0.05,),
        description="The learning rate rises linearly: 1 or more is a number of steps, below 1 a "
        "fraction of the training, 0 no warm-up; default: from the model's recipe, mostly 0.05",
    )
    warm_up_start: float | None = key(
        None,
        gt=0,
        lt=1,
        examples=(0.01,),
        description="With `warm_up`: fraction of the learning rate at its start; default: 0",
    )
    clip_norm: float | None = key(
        None,
        ge=0,
        examples=(1.0,),
        description="Maximum L2 norm of a step's gradients, over all parameters; 0: no limit; "
        "default: from the model's recipe",
    )
    label_smoothing: float = key(0.0, ge=0, lt=1)
    ema: bool = key(
        False,
        description="Lookahead: every five steps, reset the weights to their moving average",
    )
    ema_decay: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.99998,),
        description="Test, save and serve an exponential moving average of the weights; the "
        "training does not change. As in torchvision's recipes, a step keeps 1 - (1 - ema_decay) x "
        "global batch / `epochs`",
    )
