"""What people and other programs read: a table on standard output, and metrics.jsonl."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "  epoch      step      loss  accuracy   images/s  elapsed s  data/compute/exchange %"


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
    loss: float | None
    """Mean cross entropy per training sample of the epoch since it began or was resumed, nats."""
    accuracy: float | None
    """Share of all test samples that are classified correctly."""
    images_per_second: float | None
    """Training samples per second over all ranks, without evaluation and checkpoints."""
    skipped: tuple[int, ...]
    """Steps of the epoch whose update was left out because a loss was not finite."""
    shares: dict[str, float]
    """Of all ranks' time in the epoch: data, compute, communication (not hidden by compute)."""
    slow: dict[str, float]
    """Ranks that worked longer than the others, and how many times as long."""
    stall: float | None
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
    shares = "/".join(f"{share * 100:.0f}" for share in metrics.shares.values())
    return (
        f"{metrics.epoch:4d}/{metrics.epochs:<4d}{metrics.step:8d}{metrics.loss or 0:10.4f}"
        f"{metrics.accuracy or 0:10.4f}{metrics.images_per_second or 0:11.0f}{elapsed:11.1f}"
        f"{shares:>24}"
    )


def summary(metrics: Metrics, steps: int, elapsed: float) -> str:
    """A table to compare whole trainings by; `steps` of an epoch, `elapsed` in seconds."""
    return (
        "processes  steps/epoch  elapsed s   images/s  accuracy\n"
        f"{metrics.world_size:9d}{steps:13d}{elapsed:11.1f}{metrics.images_per_second or 0:11.0f}"
        f"{metrics.accuracy or 0:10.4f}"
    )


def append(folder: Path, metrics: Metrics) -> None:
    """Add a line to metrics.jsonl; `time` is in seconds since 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **asdict(metrics)})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(line + "\n")
