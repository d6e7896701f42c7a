"""The keys of a job of the built-in training: the type, default, bounds and meaning of each.

kit checks YAML and prints the JSON Schema with them; the trainer reads the job file with them. A
new key needs only a field here and its use. The rules between keys are in rules.py.

A job file has the keys of a section in this order; keys that are None are left out. Those of the
recipe (recipes.py) get their values where a job is made: a job file has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.contract.keys import Only, key
from trainer.contract.models import CROPPED, PHOTOGRAPHS
from trainer.contract.recipes import filled

BYTES = 256
"""Tokens of byte-pair encoding before it is trained, besides the one between documents."""
VOCABULARY = 8192
"""Tokens that are trained if a job does not say how many."""


OF_PHOTOGRAPHS = Only("train.dataset", PHOTOGRAPHS, "is for `dataset: folder` and shards")
OF_CROPPED = Only("train.dataset", CROPPED, f"is for {', '.join(CROPPED)}")
OF_TEXTS = Only("train.dataset", ("text",), "is for `dataset: text`")
LOCAL_MODES = ("local_sgd", "diloco")
LOCAL_MODE = "write `mode: local_sgd` or `mode: diloco`, or leave it out"


@dataclass(frozen=True, kw_only=True)
class Train:
    """The built-in training."""

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
    model: str = key(
        form="model",
        examples=("cnn", "torchvision/resnet50", "mymodel:build"),
        description="One of the trainer's models, any classifier of torchvision.models, or "
        "`module:function` in your own Python code",
    )
    options: Mapping[str, Any] | None = key(
        None,
        form="options",
        examples=({"width": 64},),
        description="For your own model: values for its functions. For gpt: `preset`, or `layers`, "
        "`heads`, `width`, `positions` (learned, rotary), `tied`, `dropout`",
    )
    activation_checkpointing: bool | None = key(
        None,
        description="For gpt: keep only the input of each block, and compute its activations again "
        "in the backward pass: a third more computation, a fraction of the memory",
        only=Only("train.model", ("gpt",), "is for `model: gpt`"),
    )
    weights: str | None = key(
        None,
        form="data path",
        examples=("IMAGENET1K_V1", "weights/resnet50.pth"),
        description="For models of torchvision: pretrained weights, as a file below the data "
        "folder or a name of torchvision. kit replaces the head if the classes differ",
    )
    download: bool | None = key(
        None,
        description="One process of each host downloads the data set, or weights by name, if they "
        "are missing",
    )
    freeze: tuple[str, ...] | None = key(
        None,
        form="layers",
        examples=(("backbone",), ("conv1", "layer1")),
        description="Layers that are not trained, each with all layers inside it; `backbone`: all "
        "except the last layer",
    )
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
    precision: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto",
        description="auto depends on the oldest GPU: fp16 for Volta and Turing, bf16 from Ampere "
        "on, fp32 on CPUs. Tests and servers use it too",
    )
    device: Literal["cpu"] | None = key(
        None,
        description="cpu: train without GPUs on purpose. Otherwise a job fails if PyTorch cannot "
        "use the GPUs of a host",
    )
    compile: bool = key(False, description="Use torch.compile")
    balance: Literal["even", "auto"] = key(
        "even",
        description="auto: shares of the batch follow the GPUs' speeds; the global batch is "
        "constant",
    )
    sync_batch_norm: bool | None = key(
        None,
        description="With `exchange: {mode: every_step}`, on GPUs: BatchNorm uses the samples of "
        "all ranks, for small batches per rank; default: false",
    )
    # For the initial weights, the order of the samples and their augmentation.
    seed: int = key(0, ge=0, lt=2**32)
    split_seed: int | None = key(
        None,
        ge=0,
        lt=2**32,
        examples=(1,),
        description="Selects other samples for `validation`, and for the test if the data set has "
        "no test part; default: 0, for any `seed`",
    )
    validation: float | None = key(
        None,
        gt=0,
        le=0.5,
        examples=(0.1,),
        description="Fraction of the training samples for validation. They are measured after each "
        "epoch and select the best checkpoint; the test samples are measured once, at the end, "
        "with that checkpoint. Default: none; the test samples are measured after each epoch",
    )
    on_nan: Literal["stop", "skip"] = key(
        "stop", description="If a loss is not finite: end the training, or skip the optimizer step"
    )
    skip_limit: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.2,),
        description="With `on_nan: skip`: end the training if it skips more than this fraction of "
        "an epoch's steps; default: 0.1",
        only=Only("train.on_nan", ("skip",), "is for `on_nan: skip`"),
    )
    on_collapse: Literal["stop", "continue"] | None = key(
        None,
        description="If the loss stays at the level of guessing, or returns to it: end the "
        "training, or continue and report it; default: stop",
    )
    tensorboard: bool | None = key(
        None,
        description="Also write TensorBoard's event files, to the folder `tensorboard` beside the "
        "checkpoints of rank 0",
    )

    def __post_init__(self) -> None:
        for name, value in filled(self).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How the ranks exchange gradients or parameters."""

    mode: Literal["every_step", "local_sgd", "diloco"] = key(
        "every_step",
        description="every_step: the gradients of each step (DDP). local_sgd, diloco: the "
        "parameters, after every `every_steps` local steps of each rank",
    )
    every_steps: int = key(
        64,
        ge=1,
        description="For local_sgd, diloco: steps between exchanges",
        only=Only("exchange.mode", LOCAL_MODES, "is for the modes with local steps", LOCAL_MODE),
    )
    warm_up_steps: int = key(
        100,
        ge=0,
        description="For local_sgd, diloco and powersgd: the first steps exchange every time, "
        "without compression",
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = key(
        "none", description="fp16, bf16: half the bytes; powersgd: only with every_step"
    )
    overlap: bool = key(
        False,
        description="For local_sgd, diloco: exchange during the next steps; ranks do not wait",
        only=Only(
            "exchange.mode",
            LOCAL_MODES,
            "DDP overlaps with the backward pass by itself",
            LOCAL_MODE,
        ),
    )
    bucket_mib: int = key(25, ge=1, le=1024, description="Size of DDP's buckets")
    static_graph: bool = key(
        False, description="DDP's static graph: the model runs the same way at every step"
    )
    # Seconds. A hung host blocks the others for this time: by default 30 minutes with gloo, 10 with
    # NCCL. The longest wait in normal operation is for a checkpoint's fsync.
    timeout: int = key(
        60, form="duration", ge=1, description="Maximum time of an exchange; then it has failed"
    )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How often to write a checkpoint, and how many to keep."""

    every_epochs: int = key(1, ge=1)
    keep: int = key(3, ge=1, description="Number of newest checkpoints, besides the best one")
    asynchronous: bool = key(True, description="Continue training while a checkpoint is written")
    files: tuple[str, ...] | None = key(
        None,
        form="files",
        examples=(("snapshot.pt",),),
        description="For `command`: files that the script saves and loads. Each host keeps "
        "versions of them, and gets the newest before each start",
    )
    # Whether all hosts share one folder: then only one process writes.
    shared: bool = key(False, planned=True)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where each host of the job serves its metrics to Prometheus."""

    port: int = key(0, ge=1024, le=65535, optional=True, examples=(9500,))  # 0: nowhere.


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens when something fails on a host of the built-in training.

    retry: the process restarts. leave_out: if the job has enough hosts, the others continue without
    its host until `kit release`; otherwise the training ends. stop: the training ends.
    """

    worker: Literal["retry", "leave_out", "stop"] = key(
        "retry", description="A process ends by an exception"
    )
    killed: Literal["retry", "leave_out", "stop"] = key("retry", description="A process is killed")
    gpu: Literal["retry", "leave_out", "stop"] = key(
        "leave_out", description="A GPU fails with a CUDA error"
    )
    memory: Literal["retry", "leave_out", "stop"] = key(
        "stop", description="A GPU has too little memory for the batch"
    )
    disk: Literal["retry", "leave_out", "stop"] = key(
        "stop", description="A checkpoint cannot be written"
    )
    parameters: Literal["retry", "leave_out", "stop"] = key(
        "leave_out", description="Parameters of a host's ranks differ from the majority's"
    )
    max_restarts: int = key(
        3,
        ge=0,
        le=1000,
        description="Number of restarts of a process within `window`, for each kind of failure and "
        "each host; ten times as many after kills",
    )
    window: int = key(3600, form="duration", ge=1, description="Period of `max_restarts`")
    then: Literal["leave_out", "stop"] = key(
        "leave_out", description="What happens after more failures than `max_restarts`"
    )
    compare_every: int = key(
        200,
        ge=0,
        description="Steps between two comparisons of the ranks' parameters; 0: only before each "
        "checkpoint",
    )
    repeat_above: float | None = key(
        None,
        gt=1,
        examples=(10.0,),
        description="With `exchange: {mode: every_step}`: compute a step again if the norm of its "
        "gradients exceeds this multiple of the median of the last 100 steps",
    )


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the ranks divide the model; without it, they divide only the samples.

    The ranks form a grid: `data` x `pipeline` x `shard` x `tensor`. Consecutive ranks differ first
    in `tensor`, then in `shard`, `pipeline` and `data`: a host with enough GPUs has all ranks of
    `tensor`. Ranks with the same `data` and `shard` have the same samples.
    """

    data: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="Number of replicas of the model; default: as the number of ranks allows",
    )
    shard: int | None = key(
        None,
        ge=1,
        examples=(4,),
        description="Number of ranks that share the parameters, gradients and optimizer of one "
        "replica (FSDP); each has its own samples",
    )
    tensor: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="For gpt: number of ranks that share the heads and hidden values of each "
        "block; must divide the heads",
    )
    pipeline: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="For gpt: number of consecutive stages of blocks; the micro-steps of "
        "`accumulation` pass through them",
    )

    @property
    def cell(self) -> int:
        """The number of ranks that have one replica of the model."""
        return (self.shard or 1) * (self.tensor or 1) * (self.pipeline or 1)

    @property
    def used(self) -> bool:
        """Whether a job divides its model, or names its replicas."""
        return self != Parallel()


@dataclass(frozen=True)
class TrainJob:
    """A job of the built-in training."""

    name: str
    train: Train
    exchange: Exchange
    checkpoint: Checkpoint
    metrics: Metrics
    faults: Faults = field(default_factory=Faults)
    parallel: Parallel = field(default_factory=Parallel)


SECTIONS: tuple[type[Any], ...] = (Train, Exchange, Checkpoint, Metrics, Faults, Parallel)
