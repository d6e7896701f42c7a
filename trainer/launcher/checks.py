"""Checks before the start for mistakes that each restart would repeat."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.contract.script import foreign_start
from trainer.launcher.disk import check_checkpoints
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say
from trainer.launcher.settings import Job, Settings


def check(settings: Settings, job: Job, package_root: Path | None) -> str:
    """Check for mistakes that each restart would repeat; describe what will run."""
    needed, example = "torch 2.2 or newer", "pytorch/pytorch"
    if job.framework == "tensorflow":
        needed, example = "tensorflow", "tensorflow/tensorflow:latest-gpu"
    module = needed.partition(" ")[0]
    if find_spec(module) is None:
        missing = f"this image has no {module} for {sys.executable}"
        raise LaunchError(f"{missing}; build it on an image with {needed}, such as {example}")
    if package_root is None:
        script = job.command[0]
        if script != "-m" and not Path(script).is_file():
            advice = "mount it, and begin with the script itself, without python or torchrun"
            missing = f"{script} is not a file in {Path.cwd()}"
            raise LaunchError(f"{settings.job}: command: {missing}; {advice}")
        if start := foreign_start(job.command):
            advice = "begin with the script itself, or with its own module"
            raise LaunchError(f"{settings.job}: command: begins with {start}; {advice}")
        if job.files:
            with suppress(OSError):  # The check below reports it.
                settings.checkpoints.mkdir(parents=True, exist_ok=True)
            check_checkpoints(settings.checkpoints)
        return " ".join(job.command)
    if not (package_root / "trainer" / "train.py").is_file():
        missing = "needs the trainer package beside launch.py; use the trainer image"
        raise LaunchError(f"{settings.job}: train: {missing}, or give the job a command")
    return check_training(settings)


def check_training(settings: Settings) -> str:
    """Check for mistakes that would end the built-in training; download data if allowed."""
    # These modules also use only the standard library.
    from trainer.core.job import JobError, installed_torch, load_job, torch_fault
    from trainer.data.fetched import place_data
    from trainer.data.files import DataMissingError, DownloadError, find_files, to_download

    if fault := torch_fault(installed_torch()):
        raise LaunchError(fault)
    try:
        train, data = place_data(load_job(settings.job).train, settings.data, os.environ)
        if to_download(train, data):
            download(train, data, settings.host)
        find_files(train, data, say)
    except JobError as error:
        raise LaunchError(str(error)) from error
    except DataMissingError as error:
        raise LaunchError(str(error), kind="data") from error
    except DownloadError as error:
        raise LaunchError(str(error), FAILURE, "data") from error
    check_checkpoints(settings.checkpoints)
    return f"{train.model} on {train.dataset}"


def download(train: Any, data: Path, host: str) -> None:
    """Download missing data with torchvision, before the ranks of this host start.

    Raises LaunchError if torchvision cannot be imported, or the errors of the trainer's `download`.
    """
    from trainer.data.files import require_torchvision

    require_torchvision("download")
    try:
        from trainer.vision.downloads import download as download_all
    except Exception as error:  # torchvision does not match torch.
        raise LaunchError(f"torchvision does not work here: {error}") from error
    os.environ["KIT_HOST"] = host
    download_all(train, data)
