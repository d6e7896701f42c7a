"""The part of a checkpoint that belongs to one rank, beside the part shared by all ranks.

    step-00000123/          equal on all hosts (format.py)
    ranks-00000123/
        rank-00002.pt       written by torch.save, on the host of rank 2

Own parts hold the optimizer in the local modes, the compression error of PowerSGD, and BatchNorm's
buffers if training stops within an epoch. Each rank writes only its own part: copies of all parts
on every host would need communication at each checkpoint. A part belongs to the checkpoint of
the same step whose model has the same fingerprint.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.checkpoints.format import Saved, State
from trainer.checkpoints.layout import part_name, parts_folder
from trainer.checkpoints.manifest import is_whole
from trainer.store.files import replace_file, sync

MOST = 16  # Parts in a mean: more would not improve it.


class Own(NamedTuple):
    """The manifest's entry on the ranks' parts."""

    model: int = 0  # Fingerprint of the model to which they belong.
    ranks: tuple[int, ...] = ()  # Ranks that have a part.
    way: tuple[Any, ...] = ()  # As Ranks.way: if it differs, no part fits unchanged.


def own_of(saved: Saved) -> Own:
    """Read the entry; older checkpoints have none, and an invalid one counts as none."""
    found = saved.content.get("own")
    if not isinstance(found, dict) or set(found) != set(Own._fields):
        return Own()
    model, ranks, way = (found[name] for name in Own._fields)
    if type(model) is not int or not isinstance(ranks, list) or not isinstance(way, list):
        return Own()
    return Own(model, tuple(ranks), tuple(way)) if all(map(is_whole, ranks)) else Own()


def write_part(folder: Path, step: int, rank: int, model: int, part: State) -> None:
    """Write a rank's part atomically."""
    target = folder / parts_folder(step)
    target.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch.save to a full disk raises a less clear error.
    torch.save({"model": model, "rank": rank, "own": part}, buffer)
    replace_file(target / part_name(rank), buffer.getbuffer())
    sync(folder)


def read_part(folder: Path, saved: Saved, rank: int) -> bytes | None:
    """Read a rank's part of a checkpoint; None if it is missing or damaged."""
    try:
        content = (folder / parts_folder(saved.step) / part_name(rank)).read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            whole = archive.testzip() is None
        part = torch.load(io.BytesIO(content), map_location="cpu", mmap=False, weights_only=True)
        mine = (part["model"], part["rank"]) == (own_of(saved).model, rank)
    except Exception:  # Its class depends on the damage.
        return None
    return content if whole and mine else None


def load_part(content: bytes) -> State:
    """Return what was given to `write_part`, on the CPU; loading it runs no code."""
    part = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return dict(part["own"])


def prune_parts(folder: Path, step: int) -> None:
    """Delete the parts, up to a step, whose checkpoints are deleted."""
    for path in folder.glob("ranks-*"):
        name = path.name.replace("ranks-", "step-")
        if path.name <= parts_folder(step) and not (folder / name).exists():
            shutil.rmtree(path, ignore_errors=True)


def mean(values: Sequence[Any]) -> Any:
    """Return nested values: the mean of floating-point tensors, the first of other values."""
    first = values[0]
    if isinstance(first, dict):
        return {key: mean([each[key] for each in values if key in each]) for key in first}
    if isinstance(first, list):
        return [mean(column) for column in zip(*values, strict=True)]
    if isinstance(first, Tensor) and first.is_floating_point():
        total = sum((each.double() for each in values[1:]), first.double())
        return (total / len(values)).to(first.dtype)
    return first
