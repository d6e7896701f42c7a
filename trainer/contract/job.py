"""The keys of a job of the built-in training: the type, default, bounds and meaning of each.

kit uses them to check YAML and to print the JSON Schema, the trainer to read the job file. The
launcher reads it before torch is imported, in images without kit, with the standard library alone.
A new key needs only a field and its use. If its default is None, jobs that do not set it do not
restart, and older images can read the file. The keys of `train:` are here, in samples.py and in
optimization.py. The rules between keys are in rules.py.

A job file has the keys of a section in this order; keys that are None are left out. kit sets the
keys of the recipe (recipes.py) when it makes a job, so a job file has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.contract.keys import Only, key
from trainer.contract.optimization import OptimizationKeys
from trainer.contract.recipes import filled
from trainer.contract.samples import AugmentationKeys, SampleKeys

LOCAL_MODES = ("local_sgd", "diloco")
LOCAL_MODE = "write `mode: local_sgd` or `mode: diloco`, or leave it out"


@dataclass(frozen=True, kw_only=True)
class ModelKeys:
    """The model, and the weights it begins with."""

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


@dataclass(frozen=True, kw_only=True)
class Train(AugmentationKeys, OptimizationKeys, ModelKeys, SampleKeys):
    """The built-in training."""

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
    # Seconds. A hung host blocks the others for this time. torch's defaults are 30 minutes with
    # gloo, 10 with NCCL. The longest wait in normal operation is for a checkpoint's fsync.
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
    """Reactions to failures on a host of the built-in training.

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
        "leave_out", description="Reaction to more failures than `max_restarts`"
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
        """Whether a job divides its model, or sets the number of replicas."""
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
