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

from trainer.contract.keys import key
from trainer.contract.recipes import filled

BYTES = 256
"""Tokens of byte-pair encoding before it is trained, besides the one between documents."""
VOCABULARY = 8192
"""Tokens that are trained if a job does not say how many."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """The built-in training."""

    dataset: str = key(
        form="data set",
        examples=("digits", "mymodel:data"),
        description="One of the trainer's own, or `module:function` of your own Python code",
    )
    path: str = key(
        "",
        form="data path",
        optional=True,
        examples=("flowers",),
        description="For folder, shards and text: place below the data folder",
    )
    url: str | None = key(
        None,
        examples=("http://pc1:8080/imagenet",),
        description="For shards: address of the folder, from which each host fetches shards "
        "shortly before their use; instead of `path`",
    )
    cache_gib: int | None = key(
        None,
        ge=1,
        examples=(100,),
        description="For shards with a `url`: largest size of the shards kept on a host; "
        "default: 32",
    )
    image_size: int = key(
        32,
        ge=8,
        le=1024,
        examples=(32,),
        description="For folder and shards: pixels a side to which the images are scaled; "
        "a multiple of 4, but for models of torchvision",
    )
    test_image_size: int | None = key(
        None,
        ge=8,
        le=1024,
        examples=(224,),
        description="For folder and shards: pixels a side of test images; default: `image_size`",
    )
    test_resize: int | None = key(
        None,
        ge=8,
        le=2048,
        examples=(232,),
        description="For folder and shards: the shorter side of test images is resized to so many "
        "pixels, and the centre is cropped; default: scaled to just fill the test images",
    )
    test_transform: Literal["weights"] | None = key(
        None,
        description="For `weights` by name: test images are resized, cropped and normalised as "
        "torchvision does for these weights; instead of the other two",
    )
    interpolation: Literal["bilinear", "bicubic"] | None = key(
        None,
        description="For folder and shards: of crops, of policies and of `test_resize`; default: "
        "bilinear for these, nearest for policies",
    )
    crop_scale: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.35,),
        description="For folder and shards: the least share of an image's area in a random crop; "
        "default: 0.08",
    )
    decode: Literal["cpu", "gpu"] | None = key(
        None,
        description="For folder and shards: gpu decodes JPEG files of the training on the GPU, and "
        "augments them there; default: cpu",
    )
    context: int = key(64, ge=8, le=4096, description="For text: characters or tokens in a sample")
    tokenizer: str | None = key(
        None,
        form="data path",
        examples=("bpe", "gpt2/tokenizer.json"),
        description="For text: `bpe`, to train byte-pair encoding on the text, or a trained "
        "tokenizer.json below the data folder; default: characters",
    )
    vocabulary: int | None = key(
        None,
        ge=BYTES + 1,
        le=2**20,
        examples=(VOCABULARY,),
        description=f"For `tokenizer: bpe`: number of tokens; default: {VOCABULARY}",
    )
    separator: str | None = key(
        None,
        examples=("<|endoftext|>",),
        description="For text as tokens: the line that separates documents in a file *.txt; "
        "default: each file is a document",
    )
    model: str = key(
        form="model",
        examples=("cnn", "torchvision/resnet50", "mymodel:build"),
        description="One of the trainer's own, any classifier of torchvision.models, or "
        "`module:function` of your own Python code",
    )
    options: Mapping[str, Any] | None = key(
        None,
        form="options",
        examples=({"width": 64},),
        description="For a model of your own: values for its functions. For gpt: `preset`, or "
        "`layers`, `heads`, `width`, `positions` (learned, rotary), `tied`, `dropout`",
    )
    activation_checkpointing: bool | None = key(
        None,
        description="For gpt: keep only the input of each block, and compute its inner values "
        "again in the backward pass; a third more computing for a fraction of the memory",
    )
    weights: str | None = key(
        None,
        form="data path",
        examples=("IMAGENET1K_V1", "weights/resnet50.pth"),
        description="For models of torchvision: what the training starts from, a file below the "
        "data folder or a name of torchvision; the head is replaced where the classes differ",
    )
    download: bool | None = key(
        None,
        description="Let one process of each host download the data set, or the weights that have "
        "a name, where they are missing",
    )
    freeze: tuple[str, ...] | None = key(
        None,
        form="layers",
        examples=(("backbone",), ("conv1", "layer1")),
        description="Layers that are not trained, by the beginnings of their names; `backbone`: "
        "all but the last layer",
    )
    epochs: int = key(ge=1, examples=(10,))
    batch_size: int = key(ge=1, examples=(256,), description="Samples for each GPU and micro-step")
    accumulation: int = key(
        1,
        ge=1,
        description="Micro-steps in each optimizer step: the global batch is `batch_size` times "
        "processes times `accumulation`",
    )
    global_batch: int | None = key(
        None,
        ge=1,
        examples=(768,),
        description="Samples of each optimizer step, however many hosts train, in as many "
        "micro-steps of `batch_size` as that takes; instead of `accumulation`",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = key(
        None, description="Default: by the model's recipe; sgd if the job writes a rate"
    )
    learning_rate: float = key(
        None,
        gt=0,
        examples=(0.1,),
        description="The highest rate, for a global batch of `rate_batch`; default: by the model's "
        "recipe",
    )
    rate_batch: int | None = key(
        None,
        ge=1,
        examples=(768,),
        description="The global batch that `learning_rate` is for. With another one, as when a "
        "host is lost, the rate is scaled: linearly for sgd, by the square root for adam and "
        "adamw. Default: that of the recipe with its rate; none for a rate of your own",
    )
    rate_limit: float | None = key(
        None,
        gt=0,
        examples=(3.2,),
        description="With `rate_batch`: the highest rate to which it is scaled; default: that of "
        "the recipe with its rate",
    )
    nesterov: bool | None = key(
        None, description="For sgd: Nesterov's form of the momentum; default: true"
    )
    beta1: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.9,),
        description="For adam and adamw: the decay of the mean of the gradients; default: by the "
        "model's recipe, or 0.9",
    )
    beta2: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.95,),
        description="For adam and adamw: that of the mean of their squares; default: by the "
        "model's recipe, or 0.999",
    )
    weight_decay: float = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="Of matrices and convolutions: not of normalisation layers, biases and "
        "embeddings; default: by the model's recipe",
    )
    norm_weight_decay: float | None = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="The weight decay of normalisation layers; default: 0",
    )
    bias_weight_decay: float | None = key(
        None,
        ge=0,
        examples=(0.0005,),
        description="The weight decay of the biases of other layers; default: 0",
    )
    schedule: Literal["constant", "cosine", "triangle"] = key(
        None,
        description="cosine: down to `final_rate`. triangle: linear up, then linear down to the "
        "end. Default: by the model's recipe, mostly cosine",
    )
    final_rate: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.1,),
        description="For cosine: the share of the rate at the end; default: 0.1 for gpt, else 0",
    )
    warm_up: float | None = key(
        None,
        ge=0,
        examples=(0.05,),
        description="The learning rate rises linearly to the schedule's: for so many steps or, "
        "below 1, for that share of the training; 0: at once; default: by the model's recipe, "
        "mostly 0.05",
    )
    warm_up_start: float | None = key(
        None,
        gt=0,
        lt=1,
        examples=(0.01,),
        description="With `warm_up`: the share of the rate from which it rises; default: 0",
    )
    clip_norm: float | None = key(
        None,
        ge=0,
        examples=(1.0,),
        description="Largest L2 norm of a step's gradients, over all parameters; 0: any; default: "
        "by the model's recipe",
    )
    label_smoothing: float = key(0.0, ge=0, lt=1)
    ema: bool = key(
        False,
        description="Lookahead: the weights are reset to their moving average every five steps",
    )
    ema_decay: float | None = key(
        None,
        ge=0,
        lt=1,
        examples=(0.99998,),
        description="Test, save and serve an exponential moving average of the weights, which does "
        "not change the training. The decay is that of torchvision's recipes: a step keeps 1 - "
        "(1 - ema_decay) times the global batch over `epochs`",
    )
    flip_at_test: bool = key(
        False,
        description="For fashion_mnist, cifar10, cifar100, folder and shards: test the mean over "
        "each image and its mirror",
    )
    augmentation: Literal["auto", "rand", "trivial"] | None = key(
        None,
        description="For folder and shards: a policy of torchvision (AutoAugment, RandAugment or "
        "TrivialAugmentWide) on random crops",
    )
    mirror: bool | None = key(
        None,
        description="For cifar10, cifar100, folder and shards: mirror half of the training images. "
        "Right for photographs, wrong for signs and scripts. Default: true, but "
        "false for folder and shards, which may have either",
    )
    repeated_augmentation: int | None = key(
        None,
        ge=2,
        le=16,
        examples=(4,),
        description="For folder and shards: so many differently augmented copies of each image in "
        "an epoch, of as many images fewer",
    )
    random_erasing: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.1,),
        description="For images: the share of the training images in which a random box is erased",
    )
    mixup: float | None = key(
        None,
        gt=0,
        examples=(0.2,),
        description="For images: mix pairs of training images; the parameter alpha of the share. "
        "With `cutmix`, each batch gets one of both by chance",
    )
    cutmix: float | None = key(
        None,
        gt=0,
        examples=(1.0,),
        description="For images: paste a box of one training image into another; as `mixup`",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto",
        description="auto follows the oldest GPU: fp16 on Volta and Turing, bf16 from Ampere on, "
        "fp32 on CPU. Tests and servers compute in it too",
    )
    device: Literal["cpu"] | None = key(
        None,
        description="cpu: train without GPUs on purpose; otherwise a job fails on a host with GPUs "
        "that PyTorch cannot use",
    )
    compile: bool = key(False, description="Use torch.compile")
    balance: Literal["even", "auto"] = key(
        "even",
        description="auto: batch shares follow each GPU's measured speed, the global batch stays",
    )
    sync_batch_norm: bool | None = key(
        None,
        description="With `exchange: {mode: every_step}`, on GPUs: BatchNorm uses the samples of "
        "all ranks, for batches that are small on each; default: those of its own rank",
    )
    # For the initial weights, the order of the samples and their augmentation.
    seed: int = key(0, ge=0, lt=2**32)
    split_seed: int | None = key(
        None,
        ge=0,
        lt=2**32,
        examples=(1,),
        description="Another choice of the samples of the test, where a data set has none of its "
        "own, and of `validation`; default: 0, with any `seed`",
    )
    validation: float | None = key(
        None,
        gt=0,
        le=0.5,
        examples=(0.1,),
        description="The share of the training samples that is set apart: it is measured after "
        "each epoch and chooses the best checkpoint. The test samples are measured once, at the "
        "end, by that checkpoint. Default: none; the test samples are measured after each epoch",
    )
    on_nan: Literal["stop", "skip"] = key(
        "stop", description="If a loss is not finite: end, or leave out the optimizer step"
    )
    skip_limit: float | None = key(
        None,
        gt=0,
        le=1,
        examples=(0.2,),
        description="With `on_nan: skip`: end if more than this share of an epoch's steps is left "
        "out; default: 0.1",
    )
    on_collapse: Literal["stop", "continue"] | None = key(
        None,
        description="If the loss stays at that of guessing, or falls back to it: end, or go on and "
        "say so; default: stop",
    )
    tensorboard: bool | None = key(
        None,
        description="Also write TensorBoard's event files, to the folder tensorboard beside the "
        "checkpoints of rank 0",
    )

    def __post_init__(self) -> None:
        for name, value in filled(self).items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How the ranks exchange what they have learnt."""

    mode: Literal["every_step", "local_sgd", "diloco"] = key(
        "every_step",
        description="every_step: the gradients of each step (DDP). local_sgd, diloco: the "
        "parameters after `every_steps` steps of each rank",
    )
    every_steps: int = key(64, ge=1, description="In the local modes: steps between two exchanges")
    warm_up_steps: int = key(
        100,
        ge=0,
        description="Steps at the beginning of a local mode, or of powersgd, that exchange every "
        "time and without compression",
    )
    compression: Literal["none", "fp16", "bf16", "powersgd"] = key(
        "none", description="fp16, bf16: half the bytes; powersgd: only with every_step"
    )
    overlap: bool = key(
        False, description="In the local modes: exchange during the next steps; ranks do not wait"
    )
    bucket_mib: int = key(25, ge=1, le=1024, description="Size of DDP's buckets")
    static_graph: bool = key(
        False, description="DDP's static graph: the model runs the same way at every step"
    )
    # Seconds. A hung host blocks the others for this time: by default 30 minutes with gloo, 10 with
    # NCCL. The longest wait in normal operation is for a checkpoint's fsync.
    timeout: int = key(
        60, form="duration", ge=1, description="After this time an exchange counts as dead"
    )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How often to write a checkpoint, and how many to keep."""

    every_epochs: int = key(1, ge=1)
    keep: int = key(3, ge=1, description="Number of the newest; the best is kept too")
    asynchronous: bool = key(True, description="Train on while a checkpoint is written")
    files: tuple[str, ...] | None = key(
        None,
        form="files",
        examples=(("snapshot.pt",),),
        description="For `command`: the files that the script saves and loads. Each host keeps "
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

    retry: the process is started again. leave_out: the others go on without its host until a person
    releases it, if the job has enough hosts; otherwise the training ends. stop: the training ends.
    """

    worker: Literal["retry", "leave_out", "stop"] = key(
        "retry", description="A process ends by an exception"
    )
    killed: Literal["retry", "leave_out", "stop"] = key("retry", description="A process is killed")
    gpu: Literal["retry", "leave_out", "stop"] = key(
        "leave_out", description="A GPU fails: an error of CUDA"
    )
    memory: Literal["retry", "leave_out", "stop"] = key(
        "stop", description="A GPU has no room for the batch"
    )
    disk: Literal["retry", "leave_out", "stop"] = key(
        "stop", description="A checkpoint can not be written"
    )
    parameters: Literal["retry", "leave_out", "stop"] = key(
        "leave_out", description="The ranks of a host have other parameters than most"
    )
    max_restarts: int = key(
        3,
        ge=0,
        le=1000,
        description="Failures of one kind on a host, within `window`, after which the process is "
        "started again; ten times as many kills",
    )
    window: int = key(3600, form="duration", ge=1, description="For `max_restarts`")
    then: Literal["leave_out", "stop"] = key(
        "leave_out", description="What happens after more failures than `max_restarts`"
    )
    compare_every: int = key(
        200,
        ge=0,
        description="Steps between two comparisons of the ranks' parameters, besides those before "
        "each checkpoint; 0: none",
    )
    repeat_above: float | None = key(
        None,
        gt=1,
        examples=(10.0,),
        description="With `exchange: {mode: every_step}`: compute the gradients of a step again if "
        "they are so many times as large as the median of the last 100 steps",
    )


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the ranks divide the model, besides the samples.

    The ranks form a grid: `data` x `pipeline` x `shard` x `tensor`. Ranks that differ in `tensor`
    alone are neighbours, on one host as far as it has enough GPUs; those that differ in `data` are
    the farthest. Ranks of one `data` and `shard` have the same samples.
    """

    data: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="Replicas of the model; default: as many as there are ranks for",
    )
    shard: int | None = key(
        None,
        ge=1,
        examples=(4,),
        description="Ranks that share one replica's parameters, gradients and optimizer, each with "
        "samples of its own (FSDP)",
    )
    tensor: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="For gpt: ranks that share the heads and hidden values of each block; a "
        "divisor of the heads",
    )
    pipeline: int | None = key(
        None,
        ge=1,
        examples=(2,),
        description="For gpt: stages of blocks that follow each other; the micro-steps of "
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
