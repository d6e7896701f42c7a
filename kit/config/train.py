"""The sections of a job for the built-in training: `train`, `exchange` and `metrics`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from kit.config.fields import DataPath, Duration, Section, wrong
from kit.model import Exchange, Train

LEARNING_RATE = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
"""Usual starting points: He et al. 2015 (arXiv 1512.03385, CIFAR-10) for SGD with momentum 0.9,
Kingma & Ba 2014 (arXiv 1412.6980) for Adam, nanoGPT's config/train_shakespeare_char.py for AdamW
(https://github.com/karpathy/nanoGPT)."""
UNKNOWN_SIZE = ("folder", "text")
"""Data sets of one's own: their classes or characters are counted from the data, and the number of
the model's parameters follows from them."""
SIDES = {"digits": 8, "mnist": 28, "cifar10": 32}
"""Pixels a side; images of a folder are brought to `image_size`."""
MIRRORED = ("cifar10", "folder")
"""Data sets whose images show the same when they are mirrored; signs become other signs."""


class TrainSection(Section):
    """The built-in training."""

    # Validators see the fields above theirs: the model comes after what it has to fit. A validator
    # of a default does not run, so what is refused here was written by someone.
    dataset: Literal["digits", "mnist", "cifar10", "folder", "text"]
    path: DataPath | None = Field(
        None,
        examples=["flowers"],
        validate_default=True,
        description="Of folder and text: below the data folder",
    )
    image_size: int = Field(
        32,
        ge=8,
        le=1024,
        multiple_of=4,
        examples=[32],
        description="Of folder: pixels a side that its images are brought to",
    )
    context: int = Field(64, ge=8, le=4096, description="Of text: characters per sample")
    model: Literal["cnn", "lenet", "resnet18", "airbench", "gpt"]
    epochs: int = Field(ge=1, examples=[10])
    batch_size: int = Field(ge=1, examples=[256], description="Per GPU and micro-step")
    accumulation: int = Field(1, ge=1, description="Micro-steps per optimizer step")
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        examples=[0.1],
        description="Default: 0.1 for sgd, 0.001 for adam and adamw",
    )
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    schedule: Literal["constant", "cosine", "triangle"] = Field(
        "cosine", description="triangle: up in a straight line, then down to the end"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False)
    ema: bool = Field(False, description="Test a moving average of the weights")
    flip_at_test: bool = Field(
        False, description="Of cifar10 and folder: test the mean over each image and its mirror"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="auto follows the oldest GPU: fp16 on Volta and Turing, bf16 from Ampere on, "
        "fp32 on CPU",
    )
    compile: bool = Field(False, description="By torch.compile")
    balance: Literal["even", "auto"] = Field(
        "even",
        description="auto: batch shares follow each GPU's measured speed, the global batch stays",
    )
    seed: int = Field(0, ge=0, lt=2**32)
    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="Where a loss is not finite: end, or leave out the optimizer step"
    )

    @field_validator("path")
    @classmethod
    def _own_data(cls, path: str | None, info: Any) -> str | None:
        dataset = info.data.get("dataset")
        if path is None and dataset in UNKNOWN_SIZE:
            example = "shakespeare.txt" if dataset == "text" else "flowers"
            raise wrong("is missing", f"write for example `path: {example}`, below the data folder")
        if path is not None and dataset in SIDES:
            raise wrong(f"{dataset} is found by its name", "leave it out")
        return path

    @field_validator("image_size")
    @classmethod
    def _images_of_a_folder(cls, size: int, info: Any) -> int:
        dataset = info.data.get("dataset")
        if dataset in SIDES:
            side = SIDES[dataset]
            raise wrong(f"images of {dataset} are {side}×{side} already", "leave it out")
        if dataset == "text":
            raise wrong("is for `dataset: folder`", "leave it out")
        return size

    @field_validator("context")
    @classmethod
    def _context_of_a_text(cls, context: int, info: Any) -> int:
        if info.data.get("dataset", "text") != "text":
            raise wrong("is for `dataset: text`", "leave it out")
        return context

    @field_validator("model")
    @classmethod
    def _fits(cls, model: str, info: Any) -> str:
        dataset, side = info.data.get("dataset"), info.data.get("image_size", 32)
        if dataset == "text" and model != "gpt":
            raise wrong(f"{model} is for images", "write `model: gpt`")
        if model == "gpt" and dataset not in {None, "text"}:
            raise wrong("gpt is for text", "write for example `model: cnn`")
        if dataset == "digits" and model != "cnn":
            what = f"{model} needs larger images than the 8×8 of digits"
            raise wrong(what, "write `model: cnn`")
        if dataset == "mnist" and model == "airbench":
            raise wrong("airbench needs colour images", "write for example `model: resnet18`")
        if dataset == "folder" and side != 32 and model in {"lenet", "airbench"}:
            what = f"{model} needs images of 32×32"
            raise wrong(what, "write `image_size: 32`, or `model: resnet18`")
        return model

    @field_validator("flip_at_test")
    @classmethod
    def _mirrored(cls, flip: bool, info: Any) -> bool:
        dataset = info.data.get("dataset")
        if flip and dataset is not None and dataset not in MIRRORED:
            what = "is for images" if dataset == "text" else f"mirrored {dataset} are other signs"
            raise wrong(what, "leave it out")
        return flip


class ExchangeSection(Section):
    """How the ranks exchange what they have learnt."""

    mode: Literal["every_step", "local_sgd", "diloco"] = Field(
        "every_step",
        description="Gradients at every step, or parameters after `every_steps` local ones",
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none", description="What is exchanged in; powersgd is for every_step"
    )
    every_steps: int = Field(
        64, ge=1, description="Of the local modes: local steps between two exchanges"
    )
    warm_up_steps: int = Field(
        100, ge=0, description="Plain steps before the local ones, or powersgd, begin"
    )
    overlap: bool = Field(
        False, description="Of the local modes: exchange during the next local steps"
    )
    bucket_mib: int = Field(25, ge=1, le=1024, description="Gradients that travel together")
    static_graph: bool = Field(False, description="The model runs the same way at every step")
    timeout: Duration = Field(60, description="From here on an exchange counts as dead")

    @field_validator("every_steps")
    @classmethod
    def _of_local_modes(cls, steps: int, info: Any) -> int:
        if info.data.get("mode") == "every_step":
            what = "is for the modes with local steps"
            raise wrong(what, "write `mode: local_sgd` or `mode: diloco`, or leave it out")
        return steps

    @field_validator("warm_up_steps")
    @classmethod
    def _before_another_way(cls, steps: int, info: Any) -> int:
        plain = info.data.get("mode") == "every_step"
        if plain and info.data.get("compression", "powersgd") != "powersgd":
            what = "is for the modes with local steps, and for powersgd"
            raise wrong(what, "write `mode: local_sgd` or `mode: diloco`, or leave it out")
        return steps

    @field_validator("compression")
    @classmethod
    def _compresses_gradients(cls, compression: str, info: Any) -> str:
        mode = info.data.get("mode", "every_step")
        if compression == "powersgd" and mode != "every_step":
            what = f"powersgd compresses gradients, and {mode} exchanges parameters"
            raise wrong(what, "write `compression: fp16`, or `mode: every_step`")
        return compression

    @field_validator("overlap")
    @classmethod
    def _overlaps_local_steps(cls, overlap: bool, info: Any) -> bool:
        if overlap and info.data.get("mode") == "every_step":
            what = "DDP overlaps with the backward pass by itself"
            raise wrong(what, "write `mode: local_sgd` or `mode: diloco`, or leave it out")
        return overlap

    @field_validator("static_graph")
    @classmethod
    def _of_every_step(cls, static: bool, info: Any) -> bool:
        if static and info.data.get("mode", "every_step") != "every_step":
            raise wrong("is for `mode: every_step`", "leave it out")
        return static


class MetricsSection(Section):
    """Where each host's first process serves its figures to Prometheus."""

    port: int | None = Field(None, ge=1024, le=65535, examples=[9500])


def to_train(section: TrainSection | None) -> Train | None:
    """Turn the validated section into the training, with what was left out."""
    if section is None:
        return None
    fields = section.model_dump()
    fields["path"] = section.path or ""
    if section.learning_rate is None:
        fields["learning_rate"] = LEARNING_RATE[section.optimizer]
    return Train(**fields)


def to_exchange(section: ExchangeSection) -> Exchange:
    """Turn the validated section into the exchange."""
    return Exchange(**section.model_dump())
