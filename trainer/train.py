"""The built-in training. Read it from `main` on; the arithmetic is in steps.py.

One process, as fits a laptop (digits: some seconds, no data to fetch):

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits python -m trainer.train

Several processes on one machine:

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits torchrun --nproc-per-node 2 -m trainer.train

Several hosts: trainer/launch.py. A job file that reaches 97 % on digits with 1 to 3 processes:

    {"name": "digits",
     "train": {"dataset": "digits", "model": "cnn", "epochs": 10, "batch_size": 32,
               "accumulation": 1, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0005,
               "schedule": "cosine", "seed": 0, "on_nan": "stop"},
     "checkpoint": {"every_epochs": 1, "keep": 3, "shared": false, "asynchronous": true}}

The result does not depend on how many processes there are: equal global batches give equal
parameters, up to rounding (and to BatchNorm, which sees only its own process's samples).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from trainer import checkpoint
from trainer.agreement import HaltError, heed_word, leave_word, require_equal
from trainer.checkpoint import Progress
from trainer.config import JobError, Train, TrainJob, load_job
from trainer.data import DataError, DataSet, load_data
from trainer.files import DataMissingError
from trainer.models import build_model, parameter_count
from trainer.report import HEADER, Metrics, append, complain, row, say, summary
from trainer.saving import Saver, resume, save
from trainer.shards import generator
from trainer.steps import Epoch, Run, Stop, evaluate, train_epoch
from trainer.watch import Watch
from trainer.world import World, describe, is_lost_peer, join_world, leave_world

if TYPE_CHECKING:
    from torch import nn

MISTAKE = 2
"""Exit code for something wrong in the input."""
FAILURE = 1
"""Exit code for work that failed; torchrun then starts all workers again."""
MOMENTUM = 0.9
"""Of SGD, in the form of Nesterov (Sutskever et al. 2013)."""


def main() -> int:
    """Train what KIT_JOB says; return the exit code."""
    started = time.monotonic()
    try:
        job = load_job(Path(os.environ.get("KIT_JOB", "")))
        root = Path(os.environ.get("KIT_DATA") or "/data")
        data = load_data(job.train, root)
    except (JobError, DataMissingError, DataError) as error:
        complain(f"trainer: error: {error}")
        return MISTAKE
    folder = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")
    try:
        world = join_world(os.environ)
        say(describe(world, os.environ))
        try:
            heed_word(world)
            code = train(set_up(job, world, data, folder, started), Stop())
        except HaltError as error:
            code = halt(world, str(error))
        except torch.cuda.OutOfMemoryError:
            return out_of_memory(world, job.train)
        leave_world(world)
    except OSError as error:
        complain(f"trainer: error: {error}; see to it and start again")
        return FAILURE
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        reason = str(error).splitlines()[0]
        complain(f"trainer: error: lost another rank, a restart resumes: {reason}")
        return FAILURE
    return code


def halt(world: World, reason: str) -> int:
    """End as all ranks do; return the exit code.

    torchrun starts workers anew that fail: where the launcher can be told, they end well, and it is
    the launcher that fails.
    """
    if world.rank == 0:
        complain(f"trainer: error: {reason}")
    return 0 if leave_word(reason) else FAILURE


def out_of_memory(world: World, train: Train) -> int:
    """Say what would fit; return the exit code. The other ranks wait in an exchange, alone."""
    size, steps = train.batch_size, train.accumulation
    advice = f"try batch_size: {size // 2} with accumulation: {steps * 2}, the same global batch"
    if size == 1:
        advice = "not even one sample fits: try a smaller model"
    reason = f"out of memory with batch_size {size} on {world.name}; {advice}"
    complain(f"trainer: error: {reason}")
    leave_word(reason)
    return FAILURE


def set_up(job: TrainJob, world: World, data: DataSet, folder: Path, started: float) -> Run:
    """Build the model and what belongs to it, the same on every rank.

    `data` are on the CPU, `started` is time.monotonic() when the process began to work.
    """
    torch.manual_seed(job.train.seed)  # The same initial weights everywhere.
    model = build_model(job.train, data).to(world.device)
    devices = [world.device.index] if world.device.type == "cuda" else None
    replica = DistributedDataParallel(model, device_ids=devices)
    optimizer = build_optimizer(model, job.train)
    # From here on each rank's own, for layers like dropout; data have generators of their own.
    torch.manual_seed(generator(job.train.seed, world.rank).initial_seed())
    saver = Saver(asynchronous=job.checkpoint.asynchronous)
    watch = Watch(world.device)
    watch.attach(replica)
    data = data.to(world.device)
    return Run(job, world, data, model, replica, optimizer, folder, started, saver, watch)


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The optimizer of the job."""
    parameters, rate, decay = model.parameters(), train.learning_rate, train.weight_decay
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, rate, weight_decay=decay)
    return torch.optim.SGD(parameters, rate, momentum=MOMENTUM, nesterov=True, weight_decay=decay)


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
    """Say what is about to happen."""
    if run.world.rank != 0:
        return
    settings = run.job.train
    say(
        f"job {run.job.name}: {settings.model} of {parameter_count(run.model):,} parameters, "
        f"{len(run.data.train):,} samples of {settings.dataset}, global batch {run.global_batch} = "
        f"{settings.batch_size} x {run.world.size} processes x {settings.accumulation}"
    )
    if progress.step:
        say(f"goes on from step {progress.step}, epoch {progress.epoch} + {progress.position}")
    say(HEADER)
    append(run.checkpoints, measure(run, "start", Epoch(progress, interrupted=False)))


def finish_epoch(run: Run, epoch: Epoch) -> None:
    """Evaluate, report and, when it is due, save."""
    progress, settings = epoch.progress, run.job.train
    last = progress.epoch == settings.epochs
    correct, seen = evaluate(run)
    if last or progress.epoch % run.job.checkpoint.every_epochs == 0:
        save(run, progress, correct / seen)
    if last:
        run.saver.wait()
    if run.world.rank != 0:
        return
    elapsed = time.monotonic() - run.started
    for event in ("epoch", "end") if last else ("epoch",):
        metrics = measure(run, event, epoch, correct / seen)
        append(run.checkpoints, metrics)
    say(row(metrics, elapsed))
    for who, factor in metrics.slow.items():
        say(f"slow: {who} works {factor} times as long as the others, who wait for it")
    if last:
        say(summary(metrics, -(-len(run.data.train) // run.global_batch), elapsed))
        where = run.checkpoints / checkpoint.folder_name(progress.step)
        stall = statistics.fmean(run.saver.stalls) * 1000
        say(f"checkpoints: training stood still for {stall:.1f} ms on each of the saves")
        say(f"done: accuracy {correct / seen:.4f}, checkpoint {where}, {elapsed:.1f} s")


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


def measure(run: Run, event: str, epoch: Epoch, accuracy: float | None = None) -> Metrics:
    """The figures of an event."""
    progress, saver = epoch.progress, run.saver
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # Each epoch ends with a step of its own, however few samples are left for it.
    todo = (epochs - progress.epoch) * -(-samples // batch)
    if progress.position:
        todo += -(-(samples - progress.position) // batch) - -(-samples // batch)
    return Metrics(
        event=event,
        epoch=progress.epoch,
        epochs=epochs,
        step=progress.step,
        steps=progress.step + todo,
        world_size=run.world.size,
        loss=epoch.loss,
        accuracy=accuracy,
        images_per_second=epoch.images_per_second,
        skipped=epoch.skipped,
        shares=epoch.sight.shares,
        slow=epoch.sight.slow,
        stall=saver.stalls[-1] if saver.stalls and saver.step == progress.step else None,
    )


if __name__ == "__main__":
    sys.exit(record(main)())
