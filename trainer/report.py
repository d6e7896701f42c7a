"""What people and other programs read: a table on standard output, and metrics.jsonl."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "  epoch      step      loss  accuracy   images/s  elapsed s"


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl, without its time."""

    event: str
    """start, epoch, stop or end."""
    epoch: int
    """Whole epochs done."""
    epochs: int
    """Epochs of the job."""
    step: int
    """Optimizer steps done."""
    steps: int
    """Optimizer steps of the whole job, at the present world size from here on."""
    world_size: int
    """Processes over all hosts."""
    loss: float | None = None
    """Mean cross entropy per training sample of the epoch since it began or was resumed, nats."""
    accuracy: float | None = None
    """Share of all test samples that are classified correctly."""
    images_per_second: float | None = None
    """Training samples per second over all ranks, without evaluation and checkpoints."""
    stall: float | None = None
    """Seconds that the training stood still for the checkpoint of this step, if it has one."""


def say(text: str) -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def row(metrics: Metrics, elapsed: float) -> str:
    """One line of the table under `HEADER`; `elapsed` in seconds."""
    return (
        f"{metrics.epoch:4d}/{metrics.epochs:<4d}{metrics.step:8d}{metrics.loss or 0:10.4f}"
        f"{metrics.accuracy or 0:10.4f}{metrics.images_per_second or 0:11.0f}{elapsed:11.1f}"
    )


def append(folder: Path, metrics: Metrics) -> None:
    """Add a line to metrics.jsonl; `time` is in seconds since 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **asdict(metrics)})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(line + "\n")
