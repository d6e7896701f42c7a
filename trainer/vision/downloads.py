"""Downloads data sets and weights for jobs with `download: true`, in one process of each host."""

from __future__ import annotations

import inspect
import io
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchvision import datasets

from trainer.contract.job import Train
from trainer.contract.models import DOWNLOADED, is_weights_name
from trainer.contract.words import nearest
from trainer.data.files import DataMissingError, DownloadError, find_files
from trainer.output import say
from trainer.store.locks import locked
from trainer.vision.cache import cached, named_weights, places
from trainer.vision.classifiers import known_name
from trainer.vision.datasets import CLASSES

SILENCE = 60.0  # Seconds without a byte after which a download fails.
DRAFT = ".kit-download-"
SPLITS = ("train", "val", "valid", "trainval", "test", "extra", "unlabeled")


def download(train: Train, root: Path) -> None:
    """Download a job's missing files; other processes of this host wait meanwhile.

    Raises DownloadError, which names the host, or JobError.
    """
    weights = weights_by_name(train)
    if not lacks_data(train, root) and not lacks_weights(weights, root):
        return  # The folder may be mounted read-only.
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with alone(root):
            if lacks_data(train, root):
                say(f"{host}: downloads {train.dataset} to {root}")
                download_data(train.dataset, root)
            if lacks_weights(weights, root):
                say(f"{host}: downloads {weights} to {root}")
                download_weights(weights, root)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500] or repr(error)
        raise DownloadError(
            f"{host}: the download to {root} has failed: {reason}; check the network and "
            "the disk, or put the files there by hand and leave out `download`"
        ) from error


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock of a data folder; the kernel frees it when this process ends."""
    with locked(root / ".kit-download"), quiet():
        for left in root.glob(f"{DRAFT}*"):  # From a killed process.
            shutil.rmtree(left)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Set the timeout of connections."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def lacks_data(train: Train, root: Path) -> bool:
    """Whether a data set of torchvision is missing in all readable formats."""
    if train.dataset not in DOWNLOADED:
        return False
    try:
        find_files(replace(train, weights=None), root)
    except DataMissingError:
        return True
    return False


def weights_by_name(train: Train) -> Any:
    """Return torchvision's weights that a job names, or None; raises JobError."""
    if not train.weights or not is_weights_name(train.weights):
        return None
    return named_weights(known_name(train.model), train.weights)


def lacks_weights(weights: Any, root: Path) -> bool:
    """Whether a file of weights is missing, or does not match the hash in its name."""
    try:
        return bool(weights) and not cached(weights, root)
    except DataMissingError:
        return True


def download_data(name: str, root: Path) -> None:
    """Download and check a data set with torchvision; its files appear atomically."""
    with tempfile.TemporaryDirectory(prefix=DRAFT, dir=root) as draft:
        # Hide torchvision's progress bars, which are for terminals.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            CLASSES[name](draft, download=True)
        for file in sorted(Path(draft).rglob("*")):
            target = root / file.relative_to(draft)
            if file.is_dir():
                target.mkdir(exist_ok=True)
            else:
                file.replace(target)


def download_weights(weights: Any, root: Path) -> None:
    """Download and check weights with torch; the file appears atomically."""
    target = places(weights, root)[0]
    target.parent.mkdir(exist_ok=True)
    prefix = target.stem.rpartition("-")[2]
    torch.hub.download_url_to_file(weights.url, str(target), prefix, progress=False)


def download_any(name: str, folder: Path) -> None:
    """Download all parts of a data set that torchvision knows, by its loader and checksums.

    Raises LookupError with an error and a remedy, OSError or RuntimeError.
    """
    classes = {each.lower(): getattr(datasets, each) for each in datasets.__all__}
    kind = CLASSES.get(name) or classes.get(name.replace("_", "").lower())
    wanted = inspect.signature(kind).parameters if kind else {}
    if "download" not in wanted:
        known = [
            each for each in classes if "download" in inspect.signature(classes[each]).parameters
        ]
        raise LookupError(f"torchvision cannot download {name}", nearest(name, known))
    parts: list[dict[str, object]] = [{}]
    if "train" in wanted:
        parts = [{"train": True}, {"train": False}]
    elif "split" in wanted:
        parts = [{"split": split} for split in SPLITS]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), quiet():
        done = sum(_download_part(kind, folder, part) for part in parts)
    if not done:
        raise LookupError(
            f"torchvision asks for more to download {name}", "give its files as a folder"
        )


def _download_part(kind: Any, folder: Path, part: dict[str, object]) -> bool:
    try:
        kind(folder, download=True, **part)
    except (TypeError, ValueError) as error:
        if part and "split" in part and "split" in str(error):
            return False  # This data set has no such split.
        raise LookupError(
            f"torchvision's {kind.__name__}: {error}", "give its files as a folder"
        ) from error
    return True
