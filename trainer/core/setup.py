"""Builds a run: the model, optimizer and other objects, the same on every rank."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.checkpoints.saver import Saver
from trainer.contract.job import Train, TrainJob
from trainer.contract.own import is_own
from trainer.core.announce import Announcer, Live
from trainer.core.compute import (
    TYPES,
    Compiled,
    Learning,
    Lookahead,
    MovingAverage,
    Norms,
    choose,
    loss_scaler,
)
from trainer.core.gpt import GPT_DIVISION, initialise
from trainer.core.meter import Meter
from trainer.core.models import build_empty_gpt, build_model, parameter_count, parameter_groups
from trainer.core.run import Reached, Run
from trainer.core.schedule import learning_rate
from trainer.core.task import classification
from trainer.core.watch import Balance, Watch
from trainer.custom.functions import build_own_optimizer, own_schedule
from trainer.custom.task import own_task
from trainer.data.samples import DataSet
from trainer.data.shards import generator
from trainer.parallel.halt import HaltError
from trainer.parallel.local import LocalReplicas
from trainer.parallel.pipeline import Pipelined
from trainer.parallel.ranks import Ranks
from trainer.parallel.replicas import Replicas
from trainer.parallel.sharded import Sharded
from trainer.parallel.world import World
from trainer.record.recorder import Recorder

BETAS = (0.9, 0.999)
"""Of Adam (Kingma & Ba 2014), if neither the job nor the recipe sets them."""
MOMENTUM = 0.9  # Of SGD, usually in Nesterov's form (Sutskever et al. 2013).


def set_up(
    job: TrainJob,
    world: World,
    data: DataSet,
    folder: Path,
    started: float,
    weights: dict[str, Tensor] | None = None,
) -> Run:
    """Build the model, optimizer and other objects, the same on every rank.

    `data` are on the CPU, `started` is time.monotonic() at the start of the process, `weights` are
    the initial ones if they are not random.
    """
    train = job.train
    torch.manual_seed(train.seed)  # The same initial weights on all ranks.
    divided, precision = job.parallel.used, choose(train.precision, world)
    ranks: Ranks
    if divided:
        # With fp16, each rank would skip steps by overflows in its own part of the gradients only.
        precision = "fp32" if precision == "fp16" else precision
        ranks, parameters = divide(job, world, data, precision, weights)
        model = ranks.model
    else:
        model = build_model(train, data)
        model.load_state_dict(weights or {}, strict=False)
        if train.sync_batch_norm:
            model = synchronise_norms(model, world.device)
        model, parameters = model.to(world.device), parameter_count(model)
    compiled = Compiled() if train.compile else None
    # A worker of an elastic training starts alone, but may join others later.
    several = world.size > 1 or "KIT_WORKERS" in os.environ
    module = compiled.compile(model, job, several=several) if compiled else model
    watch = Watch(world.device)
    if not divided:
        ranks = replicate(job, world, model, module, watch)
    announcer = Announcer(world, data.labels)
    run = Run(
        job=job,
        world=world,
        data=decoded_by(train, data.to(world.device), world),
        ranks=ranks,
        module=module,
        parameters=parameters,
        reached=Reached(),
        compiled=compiled,
        task=own_task(train) if is_own(train.model) else classification(train.label_smoothing),
        optimizer=build_optimizer(model, train),
        rate=own_schedule(train) or partial(learning_rate, train),
        average=average_of(model, train),
        precision=precision,
        scaler=loss_scaler(precision, world.device),
        checkpoints=folder,
        started=started,
        saver=Saver(asynchronous=job.checkpoint.asynchronous),
        watch=watch,
        balance=Balance(world, watch, ranks.data_size, auto=train.balance == "auto"),
        live=Live(world, train.epochs, len(data.train), announcer),
        meter=Meter(world, watch, job.name, os.environ),
        announcer=announcer,
        recorder=Recorder(job, world, folder, started),
        norms=Norms(),
        learning=Learning(),
    )
    seed_rank(run)
    return run


def decoded_by(train: Train, data: DataSet, world: World) -> DataSet:
    """Let this rank's GPU decode the training images, if the job requests it."""
    if train.decode != "gpu":
        return data
    from trainer.vision.gpu import gpu_decoder

    decoder = gpu_decoder(world.device, world.name)
    return replace(data, train=replace(cast("Any", data.train), decoder=decoder))


def synchronise_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """Convert BatchNorm layers to use the samples of all ranks; raises HaltError on a CPU."""
    if device.type != "cuda":
        what = "train.sync_batch_norm: PyTorch synchronises BatchNorm on GPUs alone"
        raise HaltError("input", f"{what}; leave it out, or train on GPUs")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return converted


def average_of(model: nn.Module, train: Train) -> Lookahead | MovingAverage | None:
    """Return the average of the weights that the job requests, if any."""
    if train.ema:
        return Lookahead(model)
    return MovingAverage(model) if train.ema_decay is not None else None


def move(run: Run, world: World, started: float) -> Run:
    """Return the run in another world: keep the trained state, rebuild what depends on ranks.

    `started` is time.monotonic() at the beginning of the change.
    """
    job, own = run.job, run.ranks.own([])
    run.ranks.release()
    gc.collect()  # DDP's circular references keep its hooks on the parameters.
    # Rank 0 may be a new process: trained ranks keep their weights, and the others get them later.
    trained = any(world.gather(run.reached.progress is not None))
    ranks = replicate(job, world, run.model, run.module, run.watch, alike=not trained)
    ranks.load_own(own, [])
    run.watch.pause()
    run.meter.move(world)
    announcer = run.announcer.moved(world)
    recorder = Recorder(job, world, run.checkpoints, started)
    recorder.run = run.recorder.run
    moved = replace(
        run,
        world=world,
        ranks=ranks,
        started=started,
        balance=Balance(world, run.watch, ranks.data_size, auto=job.train.balance == "auto"),
        live=Live(world, job.train.epochs, len(run.data.train), announcer),
        announcer=announcer,
        recorder=recorder,
    )
    seed_rank(moved)
    return moved


def replicate(
    job: TrainJob,
    world: World,
    model: nn.Module,
    module: nn.Module,
    watch: Watch,
    *,
    alike: bool = True,
) -> Ranks:
    """Wrap the model by the job's exchange mode; `alike`: all ranks get rank 0's weights."""
    kind = Replicas if job.exchange.mode == "every_step" else LocalReplicas
    return kind(model, job.exchange, world, watch.mark, module, alike=alike)


def divide(
    job: TrainJob, world: World, data: DataSet, precision: str, weights: dict[str, Tensor] | None
) -> tuple[Sharded, int]:
    """Build a divided model; return it with the number of its parameters.

    The whole GPT is never in one rank's memory.
    """
    train, type_ = job.train, TYPES[precision]
    if train.model == "gpt":
        gpt = build_empty_gpt(train, data)
        parameters = parameter_count(gpt)
        kind = Pipelined if (job.parallel.pipeline or 1) > 1 else Sharded
        ranks = kind(gpt, job, world, type_, GPT_DIVISION)
        gpt.to_empty(device=world.device)
        initialise(gpt, train.seed)
        return ranks, parameters
    model = build_model(train, data)
    model.load_state_dict(weights or {}, strict=False)
    model, parameters = model.to(world.device), parameter_count(model)
    return Sharded(model, job, world, type_, None), parameters


def seed_rank(run: Run) -> None:
    """Give each rank a different seed for layers such as dropout; data have own generators."""
    torch.manual_seed(generator(run.job.train.seed, run.ranks.data_rank).initial_seed())


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The optimizer of the job; raises JobError for a fault in the user's own."""
    if own := build_own_optimizer(model, train):
        return own
    groups = parameter_groups(model, train)
    kinds: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    kind = kinds[train.optimizer]
    nesterov = train.nesterov is not False
    more: dict[str, Any] = {"momentum": MOMENTUM, "nesterov": nesterov}
    if train.optimizer != "sgd":
        usual = BETAS if train.beta1 is None else (train.beta1, BETAS[1])
        more = {"betas": usual if train.beta2 is None else (usual[0], train.beta2)}
    # Fused: one kernel for all parameters. For Adam on a CPU this saves 1/6 of a small gpt's step.
    # The fused SGD does not support DTensor.
    divided = any(isinstance(each, DTensor) for each in model.parameters())
    fused = train.optimizer != "sgd" or not divided
    optimizer: torch.optim.Optimizer = kind(groups, train.learning_rate, fused=fused, **more)
    return optimizer
