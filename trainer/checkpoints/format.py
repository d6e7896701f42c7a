"""Checkpoints without shared storage: every host has its own copy, and the newest is used.

    step-00000123/
        state.pt        written by torch.save
        manifest.json   step, epoch, accuracy, world size, job, size and SHA-256, torch's version
        COMPLETE        empty; written last
    ranks-00000123/     the part of each rank of this host (parts.py)

A checkpoint is written under another name, synced to disk and then renamed: a folder of this name
is complete. The checksums detect a disk that returns other data.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainer.checkpoints.layout import COMPLETE, MANIFEST, NAME, STATE, folder_name
from trainer.checkpoints.listing import open_file, read_file
from trainer.checkpoints.manifest import LARGEST, Manifest, UnusableError, check, parse
from trainer.contract.job import TrainJob
from trainer.store.files import publish_folder, write_file

WRITING, FETCHING = ".writing-", ".fetching-"  # Before the names of incomplete checkpoints.
DAMAGED = "damaged-"  # Before the name of the last one that could not be used.
NONE = -1  # The step of a rank that has no checkpoint.
State = dict[str, Any]  # Nested dicts and lists of tensors and plain values.


@dataclass(frozen=True)
class Progress:
    """The position of a training."""

    epoch: int = 0  # Complete epochs.
    position: int = 0  # Processed samples of the current epoch, over all ranks.
    step: int = 0  # Optimizer steps since the start of the training.


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
        """Share of correct test samples, if it is known."""
        found = self.content.get("accuracy")
        return None if found is None else float(found)

    def load(self) -> State:
        """Return the state that was given to `pack`, on the CPU; loading it runs no code."""
        return dict(torch.load(io.BytesIO(self.state), map_location="cpu", weights_only=True))


def identity(job: TrainJob) -> dict[str, Any]:
    """Return the values that must be equal in a run and the checkpoint that it resumes from."""
    keys = ("dataset", "path", "image_size", "context", "model", "optimizer", "ema", "seed")
    found = {"name": job.name, **{key: getattr(job.train, key) for key in keys}}
    # Other initial weights, frozen layers or averages make another training. A job without them
    # matches older checkpoints.
    train = job.train
    more: dict[str, Any] = {"weights": train.weights or None, "options": train.options or None}
    more |= {"split_seed": train.split_seed, "validation": train.validation}
    more |= {"ema_decay": train.ema_decay, "freeze": train.freeze and list(train.freeze)}
    return found | {key: value for key, value in more.items() if value is not None}


def pack(
    state: State,
    progress: Progress,
    job: TrainJob,
    world_size: int,
    accuracy: float | None = None,
    labels: Sequence[str] = (),
    inputs: Mapping[str, Any] | None = None,
    own: Mapping[str, Any] | None = None,
    loss: float | None = None,
) -> Saved:
    """Make a checkpoint's content; `accuracy` is the share of correct samples, if measured.

    `loss` is the mean over the same samples. It selects the best checkpoint of a text, and of
    models without accuracy.
    `labels`, `inputs` (how images are prepared) and the rest of `serving` are needed to serve the
    model; `own` describes the ranks' own parts (parts.py).
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    manifest = {
        **asdict(progress),
        "accuracy": accuracy,
        "validation_loss": loss if loss is not None and math.isfinite(loss) else None,
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
    """Read this job's newest complete checkpoint, of a step below `before`.

    `warn` gets a line for each skipped checkpoint, with the reason.
    """
    for path in sorted(folder.glob("step-*"), reverse=True):
        if before is not None and path.name >= folder_name(before):
            continue
        try:
            return require_state(read(path, job))
        except UnusableError as reason:
            warn(f"skips {path}: {reason}")
    return None


def read(path: Path, job: TrainJob) -> Saved:
    """Read one checkpoint; raises UnusableError if it is incomplete or of another job."""
    saved = read_any(path)
    if (owner := saved.content["job"]) != identity(job):
        raise UnusableError(f"it belongs to another job, {json.dumps(owner)}")
    return saved


def read_any(path: Path) -> Saved:
    """Read a checkpoint of any job; raises UnusableError if it is incomplete."""
    try:
        open_file(path, COMPLETE).close()
    except OSError as error:
        raise UnusableError("it has no COMPLETE, its writer was interrupted") from error
    try:
        text = read_file(path, MANIFEST, LARGEST)
        saved = Saved(text, read_file(path, STATE, check(parse(text)).size))
    except OSError as error:
        raise UnusableError(f"it cannot be read ({error!r})") from error
    verify(saved, path.name)
    return saved


def require_state(saved: Saved) -> Saved:
    """Return a checkpoint; raise UnusableError unless a training can resume from its state.

    The checksum only proves that the file was not changed, so the content is checked too. Loading
    the state runs no code.
    """
    try:
        state = saved.load()
        progress, random = Progress(**state["progress"]), [each["cpu"] for each in state["rng"]]
    except Exception as error:  # Its class depends on the content.
        reason = str(error).strip().splitlines() or [""]
        what = f"{type(error).__name__}: {reason[0][:200]}"
        raise UnusableError(f"{STATE} is not the state of a training ({what})") from error
    if progress.step != saved.step or not all(isinstance(each, torch.Tensor) for each in random):
        raise UnusableError(f"{STATE} is not the state of a training after step {saved.step}")
    return saved


def verify(saved: Saved, expected: str) -> None:
    """Raise UnusableError unless the state matches the manifest, and the manifest the folder."""
    promise = check(parse(saved.manifest))
    if len(saved.state) != promise.size:
        more = "more than" if len(saved.state) > promise.size else f"{len(saved.state)} bytes of"
        raise UnusableError(f"{STATE} has {more} {promise.size}")
    if hashlib.sha256(saved.state).hexdigest() != promise.sha256:
        raise UnusableError(f"{STATE} fails its checksum")
    if (name := folder_name(promise.step)) != expected:
        raise UnusableError(f"its manifest is of {name}")


def write(folder: Path, saved: Saved, job: TrainJob, keep: int) -> Path:
    """Write a checkpoint atomically; return its folder.

    The `keep` newest of this job and its best are kept; those of other jobs are not changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob(f"{WRITING}*"), *folder.glob(f"{FETCHING}*")):
        remove(leftover)
    name = folder_name(saved.step)
    draft = folder / (WRITING + name)
    draft.mkdir()
    try:
        write_file(draft / STATE, saved.state)
        write_file(draft / MANIFEST, saved.manifest)
        write_file(draft / COMPLETE, b"")
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)  # A partial one would occupy a full disk.
        raise
    return publish(folder, draft, name, job, keep)


def publish(folder: Path, draft: Path, name: str, job: TrainJob, keep: int) -> Path:
    """Rename a complete draft to its checkpoint's name; return its folder, as `write` does."""
    path = folder / name
    if path.exists():
        make_way(path, job)
    publish_folder(draft, path)
    prune(folder, path.name, job, keep)
    return path


def make_way(path: Path, job: TrainJob) -> None:
    """Free the name of a checkpoint; keep the last damaged one, for inspection."""
    there = manifest_of(path)
    if there and there.content["job"] != identity(job):
        owner = re.sub(r"[^\w.-]", "_", there.manifest.job)[:100]
        path.rename(path.with_name(f"of-{owner}-{path.name}"))
    elif is_complete(path) and is_damaged(path):
        for last in path.parent.glob(f"{DAMAGED}*"):
            remove(last)
        path.rename(path.with_name(DAMAGED + path.name))
    else:
        remove(path)


def is_complete(path: Path) -> bool:
    """Whether a folder has all files of a checkpoint, of any content."""
    return all((path / name).is_file() for name in (COMPLETE, MANIFEST, STATE))


def is_damaged(path: Path) -> bool:
    """Whether no training can resume from a checkpoint."""
    try:
        require_state(read_any(path))
    except UnusableError:
        return True
    return False


def remove(path: Path) -> None:
    """Delete a checkpoint, COMPLETE first: after an interruption it is incomplete."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    (path / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path)


def prune(folder: Path, last: str, job: TrainJob, keep: int) -> None:
    """Delete this job's checkpoints up to `last`, except for the `keep` newest and the best.

    A later one must be damaged, as the run did not resume from it: it does not count. Incomplete
    earlier ones, of interrupted deletions, are deleted too.
    """
    for path in folder.glob("step-*"):
        if re.fullmatch(NAME, path.name) and path.name < last and not is_complete(path):
            remove(path)
    own = {path: score for path, score in scores_of(folder, job).items() if path.name <= last}
    for old in set(list(own)[:-keep]) - {best_of(own)}:
        remove(old)


def best_of(scores: Mapping[Path, float | None]) -> Path | None:
    """Return the checkpoint of the highest score, the first of equals; None without scores."""
    known = {path: score for path, score in scores.items() if score is not None}
    return max(known, key=known.__getitem__, default=None)


def scores_of(folder: Path, job: TrainJob) -> dict[Path, float | None]:
    """Return the scores of this job's readable checkpoints in the order of steps."""
    whole = sorted(each.parent for each in folder.glob(f"step-*/{COMPLETE}"))
    return {
        path: known.manifest.score
        for path in whole
        if (known := manifest_of(path)) and known.content["job"] == identity(job)
    }


class Known(NamedTuple):
    """A readable manifest: its whole content, and its checked part."""

    content: dict[str, Any]
    manifest: Manifest


def manifest_of(path: Path) -> Known | None:
    """Read a checkpoint's manifest; None if it is damaged."""
    try:
        content = parse(read_file(path, MANIFEST, LARGEST))
        return Known(content, check(content))
    except (OSError, UnusableError):
        return None
