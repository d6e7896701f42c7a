"""The keys of `train:` for the samples: the data set, and the augmentation of its images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.contract.keys import Only, key
from trainer.contract.models import CROPPED, PHOTOGRAPHS

BYTES = 256
"""Base tokens of byte-pair encoding, one for each byte, without the one between documents."""
VOCABULARY = 8192
"""The default number of tokens of a trained tokenizer."""


OF_PHOTOGRAPHS = Only("train.dataset", PHOTOGRAPHS, "is for `dataset: folder` and shards")
OF_CROPPED = Only("train.dataset", CROPPED, f"is for {', '.join(CROPPED)}")
OF_TEXTS = Only("train.dataset", ("text",), "is for `dataset: text`")


@dataclass(frozen=True, kw_only=True)
class SampleKeys:
    """The data set, and the size and form of its samples."""

    dataset: str = key(
        form="data set",
        examples=("digits", "mymodel:data"),
        description="One of the trainer's data sets, or `module:function` in your own Python code",
    )
    path: str = key(
        "",
        form="data path",
        optional=True,
        examples=("flowers",),
        description="For folder, shards and text: path below the data folder",
    )
    url: str | None = key(
        None,
        examples=("http://pc1:8080/imagenet",),
        description="For shards: address of their folder; each host fetches shards shortly before "
        "their use. Instead of `path`",
    )
    cache_gib: int | None = key(
        None,
        ge=1,
        examples=(100,),
        description="For shards with a `url`: maximum size of the shards that a host keeps; "
        "default: 32",
        only=Only("train.url", (), "is for shards with a `url`"),
    )
    image_size: int = key(
        32,
        ge=8,
        le=1024,
        examples=(32,),
        description="For folder and shards: kit scales the images to this number of pixels a side; "
        "a multiple of 4, except for models of torchvision",
    )
    test_image_size: int | None = key(
        None,
        ge=8,
        le=1024,
        examples=(224,),
        description="For folder and shards: pixels a side of test images; default: `image_size`",
        only=OF_PHOTOGRAPHS,
    )
    test_resize: int | None = key(
        None,
        ge=8,
        le=2048,
        examples=(232,),
        description="For folder and shards: resize the shorter side of test images to this number "
        "of pixels, then crop the centre; default: scale the shorter side to `test_image_size`",
        only=OF_PHOTOGRAPHS,
    )
    test_transform: Literal["weights"] | None = key(
        None,
        description="For `weights` by name: resize, crop and normalise test images as torchvision "
        "does for these weights. Instead of `test_resize` and `test_image_size`",
        only=OF_PHOTOGRAPHS,
    )
    interpolation: Literal["bilinear", "bicubic"] | None = key(
        None,
        description="For folder and shards: interpolation of crops, policies and `test_resize`; "
        "default: bilinear, for policies nearest",
        only=OF_PHOTOGRAPHS,
    )
    crop_scale: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.35,),
        description="For folder and shards: smallest fraction of an image's area in a random crop; "
        "default: 0.08",
        only=OF_PHOTOGRAPHS,
    )
    decode: Literal["cpu", "gpu"] | None = key(
        None,
        description="For folder and shards: gpu decodes and augments the JPEG files of the "
        "training on the GPU; default: cpu",
        only=OF_PHOTOGRAPHS,
    )
    context: int = key(
        64, ge=8, le=4096, description="For text: characters or tokens in a sample", only=OF_TEXTS
    )
    tokenizer: str | None = key(
        None,
        form="data path",
        examples=("bpe", "gpt2/tokenizer.json"),
        description="For text: `bpe` trains byte-pair encoding on the text; otherwise the path of "
        "a trained tokenizer.json below the data folder. Default: characters",
    )
    vocabulary: int | None = key(
        None,
        ge=BYTES + 1,
        le=2**20,
        examples=(VOCABULARY,),
        description=f"For `tokenizer: bpe`: number of tokens; default: {VOCABULARY}",
        only=Only("train.tokenizer", ("bpe",), "is for `tokenizer: bpe`"),
    )
    separator: str | None = key(
        None,
        examples=("<|endoftext|>",),
        description="For text as tokens: the line between two documents in a file *.txt; default: "
        "each file is a document",
    )


@dataclass(frozen=True, kw_only=True)
class AugmentationKeys:
    """Random changes of the training images."""

    flip_at_test: bool = key(
        False,
        description="For fashion_mnist, cifar10, cifar100, folder and shards: average the outputs "
        "of each test image and its mirror image",
    )
    augmentation: Literal["auto", "rand", "trivial"] | None = key(
        None,
        description="For folder and shards: a policy of torchvision (AutoAugment, RandAugment or "
        "TrivialAugmentWide), on random crops",
        only=OF_PHOTOGRAPHS,
    )
    mirror: bool | None = key(
        None,
        description="For cifar10, cifar100, folder and shards: mirror half of the training images. "
        "Right for photographs, wrong for signs and scripts. Default: false for folder and shards, "
        "otherwise true",
        only=OF_CROPPED,
    )
    repeated_augmentation: int | None = key(
        None,
        ge=2,
        le=16,
        examples=(4,),
        description="For folder and shards: each epoch has N augmented copies each of 1/N of the "
        "images",
        only=OF_PHOTOGRAPHS,
    )
    random_erasing: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.1,),
        description="For images: fraction of the training images in which a random box is erased",
    )
    mixup: float | None = key(
        None,
        gt=0,
        examples=(0.2,),
        description="For images: mix pairs of training images; alpha of the distribution of the "
        "mixing ratio. With `cutmix`, each batch gets one of the two at random",
    )
    cutmix: float | None = key(
        None,
        gt=0,
        examples=(1.0,),
        description="For images: paste boxes of training images into others; alpha as for `mixup`",
    )
