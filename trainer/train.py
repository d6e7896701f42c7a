"""The built-in training. Read it from `main` on; the arithmetic is in steps.py.

One process, as fits a laptop (digits: some seconds, no data to fetch):

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits python -m trainer.train

Several processes on one machine:

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits torchrun --nproc-per-node 2 -m trainer.train

Several hosts: trainer/launch.py. A job file that reaches 97 % on digits with 1 to 3 processes:

    {"name": "digits",
     "train": {"dataset": "digits", "model": "cnn", "epochs": 10, "batch_size": 32,
               "accumulation": 1, "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0005,
               "schedule": "cosine", "seed": 0},
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
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer import checkpoint
from trainer.checkpoint import Progress
from trainer.config import JobError, Train, TrainJob, load_job
from trainer.data import DataError, DataSet, load_data
from trainer.files import DataMissingError
from trainer.models import build_model, parameter_count
from trainer.report import HEADER, Metrics, append, complain, row, say
from trainer.saving import Saver
from trainer.shards import generator
from trainer.steps import Epoch, Run, Stop, evaluate, train_epoch
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
        data = load_data(job.train.dataset, root, job.train.seed)
    except (JobError, DataMissingError, DataError) as error:
        complain(f"trainer: error: {error}")
        return MISTAKE
    folder = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")
    try:
        world = join_world(os.environ)
        say(describe(world, os.environ))
        code = train(set_up(job, world, data, folder, started), Stop())
        leave_world(world)
    except OSError as error:
        complain(f"trainer: error: {error}; see to it and start again")
        return FAILURE
    except torch.cuda.OutOfMemoryError:
        complain(f"trainer: error: out of GPU memory; lower batch_size ({job.train.batch_size})")
        return FAILURE
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        reason = str(error).splitlines()[0]
        complain(f"trainer: error: lost another rank, a restart resumes: {reason}")
        return FAILURE
    return code


def set_up(job: TrainJob, world: World, data: DataSet, folder: Path, started: float) -> Run:
    """Build the model and what belongs to it, the same on every rank.

    Args:
        job: The job file.
        world: This process among all.
        data: The data set, on the CPU.
        folder: This host's checkpoints.
        started: time.monotonic() when the process began to work.
    """
    torch.manual_seed(job.train.seed)  # The same initial weights everywhere.
    _, channels, side, _ = data.train.images.shape
    model = build_model(job.train.model, channels, side).to(world.device)
    replica = DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
    )
    optimizer = build_optimizer(model, job.train)
    # From here on each rank's own, for layers like dropout; data have generators of their own.
    torch.manual_seed(generator(job.train.seed, world.rank).initial_seed())
    saver = Saver(asynchronous=job.checkpoint.asynchronous)
    return Run(job, world, data.to(world.device), model, replica, optimizer, folder, started, saver)


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """The optimizer of the job."""
    parameters, rate, decay = model.parameters(), train.learning_rate, train.weight_decay
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, rate, weight_decay=decay)
    return torch.optim.SGD(parameters, rate, momentum=MOMENTUM, nesterov=True, weight_decay=decay)


def train(run: Run, stop: Stop) -> int:
    """Train from the newest checkpoint of any host to the last epoch; return the exit code.

    Args:
        run: The training.
        stop: Says whether this process was asked to end.
    """
    progress = resume(run)
    if progress.epoch >= run.job.train.epochs:
        if run.world.rank == 0:
            say(f"job {run.job.name} has done all of its {progress.epoch} epochs: nothing to do")
        return 0
    stop.listen()
    introduce(run, progress)
    while progress.epoch < run.job.train.epochs:
        epoch = train_epoch(run, progress, stop)
        progress = epoch.progress
        if epoch.interrupted:
            return interrupt(run, progress, stop)
        finish_epoch(run, epoch)
    return 0


def resume(run: Run) -> Progress:
    """Load the newest checkpoint of any host, if there is one, on all ranks."""

    def warn(text: str) -> None:
        complain(f"trainer {run.world.host}: warning: {text}")

    saved = checkpoint.agree(run.world, run.checkpoints, run.job, warn)
    if saved is None:
        return Progress()
    state = saved.load()
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    for group in run.optimizer.param_groups:
        # The optimizer's state brings the old figure along; the job file decides.
        group["weight_decay"] = run.job.train.weight_decay
    if len(state["rng"]) == run.world.size:
        own = state["rng"][run.world.rank]
        torch.set_rng_state(own["cpu"])
        if run.world.device.type == "cuda" and "cuda" in own:
            torch.cuda.set_rng_state(own["cuda"], run.world.device)
    progress = Progress(**state["progress"])
    run.saver.step = progress.step
    return progress


def save(run: Run, progress: Progress, accuracy: float | None = None) -> None:
    """Have a checkpoint written on every host; all ranks must call it at the same step."""
    if run.saver.step == progress.step:
        return
    began, job = time.monotonic(), run.job
    run.world.share_buffers(run.model)
    rng = run.world.gather_objects(rng_state(run.world.device))
    if checkpoint.is_writer(run.world, job):
        state: dict[str, Any] = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "progress": vars(progress),
            "seed": job.train.seed,
            "rng": rng,
        }

        def write(state: dict[str, Any]) -> None:
            saved = checkpoint.pack(state, progress, job, run.world.size, accuracy)
            checkpoint.write(run.checkpoints, saved, job, job.checkpoint.keep)

        run.saver.save(state, write)
    run.saver.step = progress.step
    run.saver.stalls.append(time.monotonic() - began)


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states, uint8, of torch's generators on the CPU and, where this is one, on the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


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
    append(run.checkpoints, measure(run, "start", progress))


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
    events = ("epoch", "end") if last else ("epoch",)
    for event in events:
        metrics = measure(run, event, progress, epoch, correct / seen)
        append(run.checkpoints, metrics)
    say(row(metrics, elapsed))
    if last:
        where = run.checkpoints / checkpoint.folder_name(progress.step)
        stall = statistics.fmean(run.saver.stalls) * 1000
        say(f"checkpoints: training stood still for {stall:.1f} ms on each of the saves")
        say(f"done: accuracy {correct / seen:.4f}, checkpoint {where}, {elapsed:.1f} s")


def interrupt(run: Run, progress: Progress, stop: Stop) -> int:
    """Save where the ranks agreed to stop; return the exit code."""
    save(run, progress)
    run.saver.wait()
    if run.world.rank == 0:
        append(run.checkpoints, measure(run, "stop", progress))
        say(f"stopped at step {progress.step}, epoch {progress.epoch} + {progress.position}, saved")
    if stop.requested:
        return 0
    # Another host was told to end, this one was not: as a success, torchrun would take the job for
    # done; as a failure it starts this host's workers again, with the hosts that are left.
    complain("trainer: another host had to stop; this process ends to be started again")
    return FAILURE


def measure(
    run: Run,
    event: str,
    progress: Progress,
    epoch: Epoch | None = None,
    accuracy: float | None = None,
) -> Metrics:
    """The figures of an event; those of an epoch where there is one."""
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
        loss=epoch.loss if epoch else None,
        accuracy=accuracy,
        images_per_second=epoch.images_per_second if epoch else None,
        stall=run.saver.stalls[-1] if epoch and run.saver.step == progress.step else None,
    )


if __name__ == "__main__":
    sys.exit(main())
