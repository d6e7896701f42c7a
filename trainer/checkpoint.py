"""Checkpoints without shared storage: every host has its own copy, the newest one wins.

    step-00000123/
        state.pt        what torch.save wrote
        manifest.json   step, epoch, accuracy, world size, job, size and SHA-256, torch's version
        COMPLETE        empty; written last

A checkpoint is written under another name, synced to disk and then renamed, so a folder that has
its name is whole unless the disk lies; the checksums find out if it does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.config import TrainJob
    from trainer.world import World

STATE = "state.pt"
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
TEMPORARY = ".writing-"

NONE = -1
"""The step of a rank that has no checkpoint."""


class UnusableError(Exception):
    """Why a folder is not a checkpoint that this job may load."""


@dataclass(frozen=True)
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Whole epochs done."""
    position: int = 0
    """Samples of the epoch's order that are done, over all ranks."""
    step: int = 0
    """Optimizer steps done since the very beginning."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint's content."""

    manifest: bytes
    state: bytes

    @property
    def step(self) -> int:
        """The step after which it was written."""
        return int(json.loads(self.manifest)["step"])

    def load(self) -> dict[str, Any]:
        """What `pack` was given, on the CPU; nothing in it can run code."""
        state: dict[str, Any] = torch.load(
            io.BytesIO(self.state), map_location="cpu", weights_only=True
        )
        return state


def identity(job: TrainJob) -> dict[str, Any]:
    """What two runs must have in common for one to go on from the other's checkpoint."""
    train, exchange = vars(job.train), job.exchange
    keys = ("dataset", "path", "image_size", "context", "model", "optimizer", "ema", "seed")
    return {"name": job.name, **{key: train[key] for key in keys}, "exchange": exchange.mode}


def pack(
    state: dict[str, Any],
    progress: Progress,
    job: TrainJob,
    world_size: int,
    accuracy: float | None = None,
) -> Saved:
    """Make a checkpoint's content of nested dicts and lists of tensors and plain values.

    `accuracy` is the share of the test samples that are classified correctly, where it is known.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    manifest = {
        **asdict(progress),
        "accuracy": accuracy,
        "world_size": world_size,
        "job": identity(job),
        "files": {
            STATE: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
        },
        "torch": torch.__version__,
    }
    return Saved(json.dumps(manifest, indent=2).encode(), content)


def newest(folder: Path, job: TrainJob, warn: Callable[[str], None]) -> Saved | None:
    """Read the newest checkpoint of this job that is whole.

    `warn` is told of each folder that is passed over, and why.
    """
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return read(path, job)
        except UnusableError as reason:
            warn(f"passes over {path}: {reason}")
    return None


def read(path: Path, job: TrainJob) -> Saved:
    """Read one checkpoint.

    Raises:
        UnusableError: It is not whole, or of another job.
    """
    if not (path / COMPLETE).is_file():
        raise UnusableError("it has no COMPLETE, its writer was interrupted")
    try:
        manifest = (path / MANIFEST).read_bytes()
        saved = Saved(manifest, (path / STATE).read_bytes())
        claim = json.loads(manifest)
        owner, promise = claim["job"], claim["files"][STATE]
        step = folder_name(int(claim["step"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableError(f"it can not be read ({error!r})") from error
    if len(saved.state) != promise["bytes"]:
        raise UnusableError(f"{STATE} has {len(saved.state)} bytes of {promise['bytes']}")
    if hashlib.sha256(saved.state).hexdigest() != promise["sha256"]:
        raise UnusableError(f"{STATE} fails its checksum")
    if owner != identity(job):
        raise UnusableError(f"it is of another job, {json.dumps(owner)}")
    if step != path.name:
        raise UnusableError(f"its manifest is of {step}")
    return saved


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
    for name, content in ((STATE, saved.state), (MANIFEST, saved.manifest), (COMPLETE, b"")):
        with (draft / name).open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    sync_folder(draft)
    if path.exists():
        clear(path, job)
    draft.rename(path)
    sync_folder(folder)
    # A later one can only be damaged, or this would have gone on from it: it must not count.
    done = [old for old in own_checkpoints(folder, job) if old.name <= path.name]
    for old in set(done[:-keep]) - {best(done)}:
        shutil.rmtree(old)
    return path


def best(paths: list[Path]) -> Path | None:
    """The checkpoint of the highest test accuracy, the first of equals; None where none has any."""
    found = [(said(path).get("accuracy"), path) for path in paths]
    known = [(accuracy, path) for accuracy, path in found if accuracy is not None]
    return max(known, key=lambda each: each[0])[1] if known else None


def clear(path: Path, job: TrainJob) -> None:
    """Make the name free: what is damaged or our own goes, another job's is renamed."""
    owner = said(path).get("job")
    if owner in (None, identity(job)):
        shutil.rmtree(path)
    else:
        path.rename(path.with_name(f"of-{owner['name']}-{path.name}"))


def own_checkpoints(folder: Path, job: TrainJob) -> list[Path]:
    """This job's complete checkpoints, the oldest first."""
    complete = (path for path in sorted(folder.glob("step-*")) if (path / COMPLETE).is_file())
    return [path for path in complete if said(path).get("job") == identity(job)]


def said(path: Path) -> dict[str, Any]:
    """A checkpoint's manifest; empty where it can not be read."""
    try:
        content = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def folder_name(step: int) -> str:
    """The name of a checkpoint's folder; names sort as steps do."""
    return f"step-{step:08d}"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_writer(world: World, job: TrainJob) -> bool:
    """Whether this rank writes: the first of each host, or of all where the folder is shared."""
    return world.rank == 0 if job.checkpoint.shared else world.local_rank == 0


def agree(world: World, folder: Path, job: TrainJob, warn: Callable[[str], None]) -> Saved | None:
    """Let all ranks have the newest checkpoint that any host has.

    Ranks can be one step apart after a fault, and a host may have lost its disk: the highest step
    wins, the lowest rank that has it sends it to all, and hosts that lack it write a copy.

    Returns:
        The same content on every rank; None when no host has any.
    """
    writer = is_writer(world, job)
    own = newest(folder, job, warn) if writer else None
    steps = world.gather(own.step if own else NONE)
    if max(steps) == NONE:
        return None
    holder = steps.index(max(steps))
    content = own or Saved(b"", b"")
    chosen = Saved(
        world.broadcast(content.manifest, holder), world.broadcast(content.state, holder)
    )
    if writer and chosen != own:
        write(folder, chosen, job, job.checkpoint.keep)
    return chosen
