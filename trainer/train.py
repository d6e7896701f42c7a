"""The built-in training. Read it from `main` on; the arithmetic is in steps.py.

One process, as fits a laptop (digits: some seconds, no data to fetch); several on one machine:

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits python -m trainer.train
    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits torchrun --nproc-per-node 2 -m trainer.train

Several hosts: launch.py. A job file that reaches 97 % with 1 to 3 processes, all keys: config.py.

    {"name": "digits", "train": {"dataset": "digits", "model": "cnn", "epochs": 10,
                                 "batch_size": 32, "learning_rate": 0.1, "weight_decay": 0.0005}}

The result does not depend on how many processes there are: equal global batches give equal
parameters, up to rounding (and to BatchNorm, which sees only its own process's samples).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import checkpoint
from trainer.checkpoint import Progress
from trainer.contract.job import Train, TrainJob
from trainer.core.job import JobError, load_job
from trainer.data import DataError, DataSet, load_data
from trainer.exchange import LocalSteps, replicate
from trainer.files import DataMissingError
from trainer.models import Lookahead, build_model, parameter_count, parameter_groups
from trainer.precision import choose, loss_scaler
from trainer.report import HEADER, Figures, Live, append, complain, row, say, summary
from trainer.saving import Saver, resume, save
from trainer.shards import generator
from trainer.steps import Epoch, Run, Stop, evaluate, train_epoch
from trainer.watch import Balance, Watch
from trainer.world import (
    HaltError,
    World,
    describe,
    heed_word,
    is_lost_peer,
    join_world,
    leave_word,
    leave_world,
    require_equal,
)

MISTAKE = 2  # Exit code for something wrong in the input.
FAILURE = 1  # Exit code for work that failed; torchrun then starts all workers again.
MOMENTUM = 0.9  # Of SGD, in the form of Nesterov (Sutskever et al. 2013).


def main() -> int:
    """Train what KIT_JOB says; return the exit code."""
    started = time.monotonic()
    try:
        job = load_job(Path(os.environ.get("KIT_JOB", "")))
        data = load_data(job.train, Path(os.environ.get("KIT_DATA") or "/data"))
    except (JobError, DataMissingError, DataError) as error:
        complain(f"trainer: error: {error}")
        return MISTAKE
    world = None
    try:
        world = join_world(os.environ, timedelta(seconds=job.exchange.timeout))
        say(describe(world, os.environ))
        code = work(job, world, data, started)
        leave_world(world)
    except (OSError, DataError) as error:
        complain(f"trainer: error: {error}; see to it and start again")
        return FAILURE
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        # Who is gone is noticed at once, and its host says why; who is silent must be asked for.
        who = world.absent() if world and "Timed out" in str(error) else "another rank"
        what = f"{who} did not take part in an exchange; a restart resumes"
        complain(f"trainer: error: {what} ({str(error).splitlines()[0]})")
        return FAILURE
    return code


def work(job: TrainJob, world: World, data: DataSet, started: float) -> int:
    """Train, unless that would only repeat a failure; return the exit code."""
    folder = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")
    try:
        heed_word(world)
        return train(set_up(job, world, data, folder, started), Stop())
    except HaltError as error:
        if world.rank == 0:
            complain(f"trainer: error: {error}")
        # torchrun starts workers anew that fail: where the launcher can be told, they end well, and
        # it is the launcher that fails.
        return 0 if leave_word(str(error)) else FAILURE
    except torch.cuda.OutOfMemoryError:
        size, steps = job.train.batch_size, job.train.accumulation
        try_ = f"try batch_size: {size // 2} with accumulation: {steps * 2}, the same global batch"
        advice = try_ if size > 1 else "not even one sample fits: try a smaller model"
        reason = f"out of memory with batch_size {size} on {world.name}; {advice}"
        complain(f"trainer: error: {reason}")
        leave_word(reason)
        # The other ranks wait in an exchange, alone: this process must end at once.
        sys.exit(FAILURE)


def set_up(job: TrainJob, world: World, data: DataSet, folder: Path, started: float) -> Run:
    """Build the model and what belongs to it, the same on every rank.

    `data` are on the CPU, `started` is time.monotonic() when the process began to work.
    """
    train, exchange = job.train, job.exchange
    torch.manual_seed(train.seed)  # The same initial weights everywhere.
    model = build_model(train, data).to(world.device)
    if train.compile:
        model.compile()
    watch, precision = Watch(world.device), choose(train.precision, world)
    run = Run(
        job=job,
        world=world,
        data=data.to(world.device),
        model=model,
        replica=replicate(model, exchange, world, watch),
        optimizer=build_optimizer(model, train, world.device),
        local=None if exchange.mode == "every_step" else LocalSteps(model, exchange),
        average=Lookahead(model) if train.ema else None,
        precision=precision,
        scaler=loss_scaler(precision, world.device),
        checkpoints=folder,
        started=started,
        saver=Saver(asynchronous=job.checkpoint.asynchronous),
        watch=watch,
        balance=Balance(world, watch, auto=train.balance == "auto"),
        live=Live(world, train.epochs, job.metrics.port),
    )
    # From here on each rank's own, for layers like dropout; data have generators of their own.
    torch.manual_seed(generator(train.seed, world.rank).initial_seed())
    return run


def build_optimizer(model: nn.Module, train: Train, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of the job."""
    groups = parameter_groups(model, train)
    kinds: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    kind = kinds[train.optimizer]
    more = {"momentum": MOMENTUM, "nesterov": True} if train.optimizer == "sgd" else {}
    if device.type == "cuda" and "fused" in signature(kind).parameters:  # SGD: from torch 2.3 on.
        more["fused"] = True
    optimizer: torch.optim.Optimizer = kind(groups, train.learning_rate, **more)
    return optimizer


def train(run: Run, stop: Stop) -> int:
    """Train from the newest checkpoint of any host to the last epoch; return the exit code."""
    progress = resume(run)
    if progress.epoch >= run.job.train.epochs:
        if run.world.rank == 0:
            say(f"job {run.job.name} has done all of its {progress.epoch} epochs: nothing to do")
        return 0
    require_equal(run.world, run.model)
    stop.listen()
    introduce(run, progress)
    while progress.epoch < run.job.train.epochs:
        epoch = train_epoch(run, progress, stop)
        progress = epoch.progress
        if progress.position == 0:
            finish_epoch(run, epoch)
        if epoch.interrupted and progress.epoch < run.job.train.epochs:
            return interrupt(run, epoch, stop)
    return 0


def introduce(run: Run, progress: Progress) -> None:
    """Say what is about to happen, and on which GPUs."""
    seen = dict(run.world.gather((run.world.host, os.environ.get("KIT_GPUS", ""))))
    if run.world.rank != 0:
        return
    train, exchange = run.job.train, run.job.exchange
    sizes = f"{train.batch_size} x {run.world.size} processes x {train.accumulation}"
    start = measure(run, "start", Epoch(progress, interrupted=False))
    say(
        f"job {run.job.name}: {train.model} of {parameter_count(run.model):,} parameters, "
        f"{len(run.data.train):,} samples of {train.dataset}, global batch {run.global_batch} = "
        f"{sizes}, {run.precision}, exchange {exchange.mode}, compression {exchange.compression}, "
        f"{start.steps} steps in {train.epochs} epochs"
    )
    if progress.step:
        say(f"goes on from step {progress.step}, epoch {progress.epoch} + {progress.position}")
    say(HEADER)
    gpus = {host: uuids.split(",") for host, uuids in seen.items() if uuids}
    append(run.checkpoints, replace(start, gpus=gpus))


def finish_epoch(run: Run, epoch: Epoch) -> None:
    """Evaluate, report and, when it is due, save."""
    progress, settings = epoch.progress, run.job.train
    last = progress.epoch == settings.epochs
    if last and run.average:
        run.average.update(run.model, run.average.decay(1))
    correct, seen = evaluate(run)
    if last or progress.epoch % run.job.checkpoint.every_epochs == 0:
        save(run, progress, correct / seen)
    if last:
        run.saver.wait()
    figures = measure(run, "epoch", epoch, correct / seen)
    names = ("epoch", "step", "loss", "accuracy", "images_per_second", "world_size", "stall")
    run.live.publish(**{name: getattr(figures, name) for name in names}, **figures.shares)
    if run.world.rank == 0:
        tell(run, figures, last=last)


def tell(run: Run, figures: Figures, *, last: bool) -> None:
    """Write down an epoch and, after the last one, what to compare the training by."""
    elapsed = time.monotonic() - run.started
    append(run.checkpoints, figures)
    say(row(figures, elapsed))
    for who, factor in figures.slow.items():
        say(f"slow: {who} works {factor} times as long as the others, who wait for it")
    if run.job.train.balance == "auto":
        say("batch: " + "/".join(f"{share * 100:.0f}" for share in figures.batch) + " % by rank")
    if not last:
        return
    append(run.checkpoints, replace(figures, event="end"))
    steps = -(-len(run.data.train) // run.global_batch)
    say(summary(figures, steps, elapsed))
    busy = figures.shares["data"] + figures.shares["compute"]
    seconds = busy * len(run.data.train) / (figures.images_per_second or 1) / steps
    say(f"for kit plan: step_seconds: {seconds:.4g}, {parameter_count(run.model)} parameters")
    stall = statistics.fmean(run.saver.stalls) * 1000
    say(f"checkpoints: training stood still for {stall:.1f} ms on each of the saves")
    where = run.checkpoints / checkpoint.folder_name(figures.step)
    say(f"done: accuracy {figures.accuracy:.4f}, checkpoint {where}, {elapsed:.1f} s")


def interrupt(run: Run, epoch: Epoch, stop: Stop) -> int:
    """Save where the ranks agreed to stop; return the exit code."""
    progress = epoch.progress
    save(run, progress)
    run.saver.wait()
    if run.world.rank == 0:
        append(run.checkpoints, measure(run, "stop", epoch))
        say(f"stopped at step {progress.step}, epoch {progress.epoch} + {progress.position}, saved")
    if stop.requested:
        return 0
    # Another host was told to end, this one was not: as a success, torchrun would take the job for
    # done; as a failure it starts this host's workers again, with the hosts that are left.
    complain("trainer: another host had to stop; this process ends to be started again")
    return FAILURE


def measure(run: Run, event: str, epoch: Epoch, accuracy: float | None = None) -> Figures:
    """The figures of an event."""
    progress, saver = epoch.progress, run.saver
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # Each epoch ends with a step of its own, however few samples are left for it.
    todo = (epochs - progress.epoch) * -(-samples // batch)
    if progress.position:
        todo += -(-(samples - progress.position) // batch) - -(-samples // batch)
    stall = saver.stalls[-1] if saver.stalls and saver.step == progress.step else None
    shares = tuple(round(share, 4) for share in run.balance.shares)
    past, whole, world = progress.epoch, progress.step + todo, run.world.size
    return Figures(
        event, past, epochs, progress.step, whole, world, accuracy, stall, shares, **epoch.figures
    )


if __name__ == "__main__":
    sys.exit(record(main)())
