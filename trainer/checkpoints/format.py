"""Checkpoints without shared storage: every host has its own copy, the newest one wins.

    step-00000123/
        state.pt        what torch.save wrote
        manifest.json   step, epoch, accuracy, world size, job, size and SHA-256, torch's version
        COMPLETE        empty; written last
    ranks-00000123/     what each rank of this host has of its own (parts.py)

A checkpoint is written under another name, synced to disk and then renamed, so a folder that has
its name is whole unless the disk lies; the checksums find out if it does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainer.checkpoints.layout import COMPLETE, MANIFEST, STATE, folder_name
from trainer.contract.job import TrainJob

TEMPORARY = ".writing-"
NONE = -1  # The step of a rank that has no checkpoint.
State = dict[str, Any]  # Nested dicts and lists of tensors and plain values.


class UnusableError(Exception):
    """Why a folder is not a checkpoint that this job may load."""


@dataclass(frozen=True)
class Progress:
    """The position of a training."""

    epoch: int = 0  # Whole epochs done.
    position: int = 0  # Samples of the epoch's order that are done, over all ranks.
    step: int = 0  # Optimizer steps done since the very beginning.


class Saved(NamedTuple):
    """A checkpoint's content."""

    manifest: bytes
    state: bytes

    @property
    def content(self) -> dict[str, Any]:
        """The manifest's content."""
        return dict(json.loads(self.manifest))

    @property
    def step(self) -> int:
        """The step after which it was written."""
        return int(self.content["step"])

    @property
    def accuracy(self) -> float | None:
        """Share of the test samples, where it is known."""
        found = self.content.get("accuracy")
        return None if found is None else float(found)

    def load(self) -> State:
        """Return the state that `pack` was given, on the CPU; nothing in it can run code."""
        return dict(torch.load(io.BytesIO(self.state), map_location="cpu", weights_only=True))


def identity(job: TrainJob) -> dict[str, Any]:
    """Return the values that a run and the checkpoint that it resumes from must have in common."""
    keys = ("dataset", "path", "image_size", "context", "model", "optimizer", "ema", "seed")
    found = {"name": job.name, **{key: getattr(job.train, key) for key in keys}}
    # Of other weights it is another training; without any it has the identity of before there were.
    return found | ({"weights": job.train.weights} if job.train.weights else {})


def pack(
    state: State,
    progress: Progress,
    job: TrainJob,
    world_size: int,
    accuracy: float | None = None,
    labels: Sequence[str] = (),
    inputs: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
) -> Saved:
    """Make a checkpoint's content; `accuracy` on the test samples is a share, where it is known.

    `labels`, `inputs` (how images are prepared) and the rest of `serving` are what it takes besides
    to answer with the model; `own` are the words on the ranks' own parts (parts.py).
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    manifest = {
        **asdict(progress),
        "accuracy": accuracy,
        "world_size": world_size,
        "job": identity(job),
        "own": dict(own or {}),
        "serving": {
            "labels": labels,
            "input": dict(inputs or {}),
            "precision": job.train.precision,
            "flip_at_test": job.train.flip_at_test,
        },
        "files": {STATE: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
        "torch": torch.__version__,
    }
    return Saved(json.dumps(manifest, indent=2).encode(), content)


def newest(
    folder: Path, job: TrainJob, warn: Callable[[str], None], before: int | None = None
) -> Saved | None:
    """Read this job's newest whole checkpoint, of a step below `before`.

    `warn` is told which are passed over, and why.
    """
    for path in sorted(folder.glob("step-*"), reverse=True):
        if before is not None and path.name >= folder_name(before):
            continue
        try:
            return read(path, job)
        except UnusableError as reason:
            warn(f"passes over {path}: {reason}")
    return None


def read(path: Path, job: TrainJob) -> Saved:
    """Read one checkpoint; raises UnusableError where it is not whole, or of another job."""
    saved = read_any(path)
    if (owner := json.loads(saved.manifest)["job"]) != identity(job):
        raise UnusableError(f"it is of another job, {json.dumps(owner)}")
    return saved


def read_any(path: Path) -> Saved:
    """Read a checkpoint of whatever job; raises UnusableError where it is not whole."""
    if not (path / COMPLETE).is_file():
        raise UnusableError("it has no COMPLETE, its writer was interrupted")
    try:
        saved = Saved((path / MANIFEST).read_bytes(), (path / STATE).read_bytes())
    except OSError as error:
        raise UnusableError(f"it can not be read ({error!r})") from error
    verify(saved, path.name)
    return saved


def verify(saved: Saved, expected: str) -> None:
    """Raise UnusableError unless all is there that the manifest of the folder's name promises."""
    try:
        claim = json.loads(saved.manifest)
        promise, name = claim["files"][STATE], folder_name(saved.step)
        promise["bytes"], promise["sha256"], claim["job"]["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableError(f"it can not be read ({error!r})") from error
    if len(saved.state) != promise["bytes"]:
        raise UnusableError(f"{STATE} has {len(saved.state)} bytes of {promise['bytes']}")
    if hashlib.sha256(saved.state).hexdigest() != promise["sha256"]:
        raise UnusableError(f"{STATE} fails its checksum")
    if name != expected:
        raise UnusableError(f"its manifest is of {name}")


def write(folder: Path, saved: Saved, job: TrainJob, keep: int) -> Path:
    """Write a checkpoint so that it is there whole or not at all; return its folder.

    `keep` of this job's newest stay, besides the best; those of other jobs are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)
    path = folder / folder_name(saved.step)
    draft = folder / (TEMPORARY + path.name)
    draft.mkdir()
    try:
        for name, content in ((STATE, saved.state), (MANIFEST, saved.manifest), (COMPLETE, b"")):
            with (draft / name).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)  # On a full disk half a checkpoint is in the way.
        raise
    sync_folder(draft)
    if path.exists():
        owner = manifest_of(path).get("job")
        if owner in (None, identity(job)):  # Damaged, or our own.
            shutil.rmtree(path)
        else:
            path.rename(path.with_name(f"of-{owner['name']}-{path.name}"))
    draft.rename(path)
    sync_folder(folder)
    prune(folder, path.name, job, keep)
    return path


def prune(folder: Path, last: str, job: TrainJob, keep: int) -> None:
    """Delete this job's checkpoints up to `last`, but for the `keep` newest and the best.

    A later one can only be damaged, or the run would have gone on from it: it must not count.
    """
    whole = sorted(each.parent for each in folder.glob(f"step-*/{COMPLETE}"))
    known = {path: manifest_of(path) for path in whole if path.name <= last}
    own = [path for path in known if known[path].get("job") == identity(job)]
    scored = [path for path in own if known[path].get("accuracy") is not None]
    # The first of equals; none may be known.
    best = max(scored, key=lambda path: known[path]["accuracy"], default=None)
    for old in set(own[:-keep]) - {best}:
        shutil.rmtree(old)


def manifest_of(path: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest; empty where it cannot be read."""
    try:
        content = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
