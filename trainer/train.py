"""The built-in training. Start reading at `main`; the arithmetic of a step is in core/step.py.

One process, for example on a laptop (digits: some seconds, no download), and two on one machine:

    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits python -m trainer.train
    KIT_JOB=digits.json KIT_CHECKPOINTS=/tmp/digits torchrun --nproc-per-node 2 -m trainer.train

Several hosts: launch.py. All keys: contract/job.py. A job file that reaches 97 % with 1 to 3
processes:

    {"name": "digits", "train": {"dataset": "digits", "model": "cnn", "epochs": 10,
                                 "batch_size": 32, "learning_rate": 0.1, "weight_decay": 0.0005}}

The result does not depend on the number of processes: equal global batches give equal parameters,
except for rounding and for BatchNorm, which sees only the samples of its own process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.contract import events
from trainer.contract.events import FailureClass
from trainer.contract.job import TrainJob
from trainer.contract.models import of_torchvision
from trainer.core import alike
from trainer.core.alike import require_alike
from trainer.core.job import JobError, load_job, torch_fault
from trainer.core.run import Stop
from trainer.core.session import FAILURE, GoBackError, Session, folder_of, train
from trainer.core.setup import set_up
from trainer.core.state import NotSavedError
from trainer.data.fetched import place_data
from trainer.data.files import (
    DataMissingError,
    DownloadError,
    needs_torchvision,
    require_torchvision,
    to_download,
)
from trainer.data.load import load_data
from trainer.data.samples import DamagedError, DataError, DataSet
from trainer.elastic.membership import Membership
from trainer.output import emit, say, say_error
from trainer.parallel.device import cuda_fault
from trainer.parallel.halt import HaltError, request_halt
from trainer.parallel.world import World, describe, is_lost_peer, join_world, leave_world
from trainer.record.board import board_fault

MISTAKE = 2  # Exit code for a mistake in the input.
PERMANENT: dict[type[Exception], tuple[FailureClass, int]] = {
    NotSavedError: ("disk", FAILURE),
    DamagedError: ("data", MISTAKE),
    JobError: ("input", MISTAKE),  # In a custom function.
}
"""Errors during a training that a restart would repeat: their kinds and exit codes."""
Weights = dict[str, Tensor] | None


def main() -> int:
    """Train the job of the file KIT_JOB; return the exit code."""
    started = time.monotonic()
    if fault := torch_fault(torch.__version__):
        return fail("input", fault, MISTAKE)
    try:
        job = load_job(Path(os.environ.get("KIT_JOB", "")))
        data, weights = load(job, Path(os.environ.get("KIT_DATA") or "/data"))
    except JobError as error:
        tell_frames(error)
        return fail_job("input", str(error), MISTAKE)
    except (DataMissingError, DataError) as error:
        return fail_job("data", str(error), MISTAKE)
    except DownloadError as error:
        return fail_job("data", str(error), FAILURE)
    require_device(job)
    world = None
    try:
        if membership := Membership.of(os.environ):
            session = Session(job, data, weights, started, membership)
            return session.run(partial(work, job))
        world = join_world(os.environ, timedelta(seconds=job.exchange.timeout))
        say(describe(world, os.environ))
        code = work(job, world, partial(train_once, job, data, weights, started))
        leave_world(world)
    except (OSError, DataError) as error:
        kind: FailureClass = "data" if isinstance(error, DataError) else "disk"
        return fail(kind, f"{error}; correct it and start again", FAILURE)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        return fail("peer", lost_peer(world, error), FAILURE)
    return code or 0


def require_device(job: TrainJob) -> None:
    """End this process if PyTorch cannot use the GPU that its container has for it."""
    if job.train.device:
        os.environ["KIT_DEVICE"] = job.train.device
    given = [uuid for uuid in os.environ.get("KIT_GPUS", "").split(",") if uuid]
    needed = int(os.environ.get("LOCAL_RANK", "0")) + 1
    if fault := cuda_fault(os.environ, len(given), needed):
        end_at_once("gpu", f"{fault}; `train: {{device: cpu}}` trains without")


def train_once(
    job: TrainJob, data: DataSet, weights: Weights, started: float, world: World
) -> int | None:
    """Train in the only process group of this process."""
    folder = folder_of(os.environ)
    require_alike(world, alike.describe(job, world.host, data, folder))
    return train(set_up(job, world, data, folder, started, weights), Stop())


def load(job: TrainJob, root: Path) -> tuple[DataSet, Weights]:
    """Load the data and the initial weights; None stands for random weights.

    Raises JobError, DataMissingError, DataError or DownloadError.
    """
    train, root = place_data(job.train, root, os.environ)
    if train.tensorboard and (fault := board_fault()):
        raise JobError(fault)
    if to_download(train, root):  # The launcher has downloaded them; torchrun alone has not.
        require_working_torchvision("download")
        from trainer.vision.downloads import download

        download(train, root)
    if need := needs_torchvision(train):
        require_working_torchvision(need)
    data = load_data(train, root)
    if not of_torchvision(train.model):
        return data, None
    from trainer.vision.classifiers import starting_weights

    return data, starting_weights(train, data.classes, data.side, root)


def require_working_torchvision(need: str) -> None:
    """Raise DataMissingError if torchvision does not match the installed torch."""
    require_torchvision(need)
    try:
        import_module("torchvision")
    except Exception as error:  # Its class depends on the mismatch.
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        what = f"torchvision does not work with torch {torch.__version__} ({reason})"
        raise DataMissingError(f"{what}; install the two of one release") from error


def fail_job(kind: FailureClass, message: str, code: int) -> int:
    """End before it reaches the coordinator, for a reason that a restart would repeat."""
    return 0 if request_halt(kind, message, code) else fail(kind, message, code)


def fail(kind: FailureClass, message: str, code: int) -> int:
    """Report why this process ends; return its exit code."""
    rank, line = int(os.environ.get("RANK", "0")), message.splitlines()[0]
    emit(events.Failed(kind=kind, message=line, rank=rank, exit_code=code))
    say_error(f"trainer: error: {message}")
    return code


def lost_peer(world: World | None, error: RuntimeError) -> str:
    """Describe the ranks that did not take part in a collective, as far as this one knows."""
    # A dead peer is detected at once, and its host reports why; a hung peer must be probed.
    who = world.silent_ranks() if world and "Timed out" in str(error) else "another rank"
    what = f"{who} did not take part in an exchange; a restart resumes"
    return f"{what} ({str(error).splitlines()[0]})"


def work(job: TrainJob, world: World, act: Callable[[World], int | None]) -> int | None:
    """Train in a world; return the exit code, or None if another group follows."""
    try:
        return act(world)
    except HaltError as error:
        if goes_back(job, world, error):
            raise GoBackError(str(error)) from None
        # The agent restarts workers that fail. If it accepts the request to halt, the workers exit
        # with 0 and the agent fails.
        code = 0 if request_halt(error.kind, str(error)) else FAILURE
        if world.rank == 0:
            fail(error.kind, str(error), FAILURE)
        if world.generation:
            sys.exit(code)  # Without a last barrier: others may have left the group already.
        return code
    except torch.cuda.OutOfMemoryError:
        end_at_once("memory", f"out of memory {advice(job, world)}")
    except tuple(PERMANENT) as error:
        tell_frames(error)
        kind, code = next(PERMANENT[each] for each in PERMANENT if isinstance(error, each))
        end_at_once(kind, str(error), code)
    except RuntimeError as error:
        if "CUDA error: " not in str(error) or not world.generation:
            raise
        kind, reason, code = gpu_fault(error)
        end_at_once(kind, f"{world.name}: {reason}", code)


def goes_back(job: TrainJob, world: World, error: HaltError) -> bool:
    """Whether this host continues from a checkpoint, without the hosts that caused the failure."""
    leaves_out = error.kind == "parameters" and job.faults.parameters == "leave_out"
    return bool(world.generation and leaves_out and error.hosts) and world.host not in error.hosts


def gpu_fault(error: RuntimeError) -> tuple[FailureClass, str, int]:
    """Describe a CUDA error: of the GPU or its driver, such as after an XID, or of the data."""
    reason = str(error).splitlines()[0]
    if "device-side assert" not in reason:
        return "gpu", reason, FAILURE
    # PyTorch's own check of an index: the GPU is healthy, and any other one fails too.
    what = "an index is out of range, as a label that is none of the model's outputs"
    return "input", f"{reason}: {what}; the assertion above has its place", MISTAKE


def end_at_once(kind: FailureClass, reason: str, code: int = FAILURE) -> NoReturn:
    """End for a permanent reason without a last barrier: the other ranks wait in a collective."""
    request_halt(kind, reason, code)
    sys.exit(fail(kind, reason, code))


def tell_frames(error: Exception) -> None:
    """Print the stack frames of the user's code that led to an error."""
    for frame in getattr(error, "frames", ()):
        say_error(frame)


def advice(job: TrainJob, world: World) -> str:
    """Name the batch that did not fit, and a smaller one with the same result."""
    size, steps = job.train.batch_size, job.train.accumulation
    same = "" if job.train.global_batch else f" with accumulation: {steps * 2}"
    smaller = f"batch_size: {size // 2}{same}, the same global batch"
    fix = f"try {smaller}" if size > 1 else "not even one sample fits: try a smaller model"
    return f"with batch_size {size} on {world.name}; {fix}"


if __name__ == "__main__":
    sys.exit(record(main)())
