"""Measures a step of a job on one GPU. `kit bench step` runs this module in a container.

    KIT_JOB=digits.json KIT_DATA=/data KIT_NPROC=2 python -m trainer.bench.steps SECONDS

The last line of its output is a JSON object. Data, model and precision are the job's; nothing is
exchanged, evaluated or saved.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch

from trainer.checkpoints.format import Progress
from trainer.core.epoch import rehearse, train_epoch
from trainer.core.job import JobError, load_job
from trainer.core.models import parameter_count
from trainer.core.run import Run, Stop
from trainer.core.setup import set_up
from trainer.data.files import DataMissingError, DownloadError
from trainer.data.samples import DataError
from trainer.output import say, say_error
from trainer.parallel.halt import HaltError
from trainer.parallel.world import join_world, leave_world
from trainer.train import MISTAKE, load

FOREVER = 10**6
"""A number of epochs that no measurement reaches."""


@dataclass(frozen=True)
class Steps:
    """The seconds of a step including its data, and a description of the computation."""

    step_seconds: float
    batch_size: int  # Samples of a step, with accumulation.
    parameters: int
    model: str
    dataset: str
    device: str


class TimeOver(Stop):
    """Asks to stop after a time; the epoch then ends with the present step."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def requested(self) -> bool:  # type: ignore[override]
        """Whether the time is over."""
        return time.monotonic() >= self._until


def measure(run: Run, seconds: float) -> Steps:
    """Train for a third of the time as a warm-up, then for the whole time; divide by the steps."""
    rehearse(run)
    _train(run, seconds / 3)
    samples, taken = _train(run, seconds)
    device = run.world.device
    return Steps(
        step_seconds=taken / samples * run.global_batch,
        batch_size=run.global_batch,
        parameters=parameter_count(run.model),
        model=run.job.train.model,
        dataset=run.job.train.dataset,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )


def _train(run: Run, seconds: float) -> tuple[int, float]:
    """Return the number of samples processed, and the seconds."""
    over, progress, samples, began = TimeOver(seconds), Progress(), 0, time.monotonic()
    while not over.requested:
        end = train_epoch(run, progress, over).progress
        whole = len(run.data.train) * (end.epoch - progress.epoch)
        samples += whole + end.position - progress.position
        progress = end
    if run.world.device.type == "cuda":
        torch.cuda.synchronize()
    return samples, time.monotonic() - began


def processes() -> int:
    """Return the number of processes that share a host in the training, KIT_NPROC."""
    return max(1, int(os.environ.get("KIT_NPROC") or 1))


def main() -> int:
    """Measure the job of KIT_JOB; return the exit code."""
    seconds = float(sys.argv[1])
    if not 0 < seconds < math.inf:
        say_error("trainer: error: the seconds must be a positive number")
        return MISTAKE
    if "OMP_NUM_THREADS" not in os.environ:  # As in launcher/start.py.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes()))
    try:
        job = load_job(Path(os.environ.get("KIT_JOB", "")))
        job = replace(
            job,
            train=replace(job.train, epochs=FOREVER, warm_up=0.0),
            exchange=replace(job.exchange, mode="every_step", compression="none", overlap=False),
            metrics=replace(job.metrics, port=0),
        )
        with tempfile.TemporaryDirectory() as folder:
            os.environ["KIT_CHECKPOINTS"] = folder  # Tokens are kept there too.
            data, weights = load(job, Path(os.environ.get("KIT_DATA") or "/data"))
            world = join_world({}, timedelta(seconds=60))
            run = set_up(job, world, data, Path(folder), time.monotonic(), weights)
            found = measure(run, seconds)
        leave_world(world)
    except (JobError, DataMissingError, DataError, DownloadError, HaltError) as error:
        say_error(f"trainer: error: {error}")
        return MISTAKE
    except torch.cuda.OutOfMemoryError:
        say_error(f"trainer: error: batch_size {job.train.batch_size} does not fit into the memory")
        return MISTAKE
    say(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
