"""The figures of a training, and metrics.jsonl, where they stay."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.core.epoch import EpochResult
from trainer.core.run import Run


@dataclass(frozen=True)
class Figures:
    """One line of metrics.jsonl, without its time."""

    event: str  # start, epoch, stop or end.
    epoch: int  # Whole epochs done.
    epochs: int  # Of the job.
    step: int  # Optimizer steps done.
    steps: int  # Of the whole job, at the present world size from here on.
    world_size: int  # Processes over all hosts.
    accuracy: float | None  # Share of all test samples that are classified correctly.
    stall: float | None  # Seconds without training for the checkpoint of this step, if it has one.
    batch: tuple[float, ...]  # Each rank's share of the global batch.
    loss: float | None = None  # Mean cross entropy per training sample since the epoch began, nats.
    images_per_second: float | None = None  # Over all ranks, without evaluation and saving.
    skipped: tuple[int, ...] = ()  # Steps of the epoch left out as a loss was not finite.
    shares: dict[str, float] = field(default_factory=dict)
    """Of all ranks' time: data, compute, communication that computing does not hide."""
    slow: dict[str, float] = field(default_factory=dict)
    """Ranks that worked longer than the others, and how many times as long."""
    gpus: dict[str, list[str]] = field(default_factory=dict)
    """At a start: the UUIDs of the GPUs that each host's container sees."""


def measure(run: Run, event: str, epoch: EpochResult, accuracy: float | None = None) -> Figures:
    """The figures of an event."""
    progress, saver = epoch.progress, run.saver
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # Each epoch ends with a step of its own, however few samples are left for it.
    todo = (epochs - progress.epoch) * -(-samples // batch)
    if progress.position:
        todo += -(-(samples - progress.position) // batch) - -(-samples // batch)
    stall = saver.stalls[-1] if saver.stalls and saver.step == progress.step else None
    shares = tuple(round(share, 4) for share in run.balance.shares)
    past, whole, world = progress.epoch, progress.step + todo, run.world.size
    return Figures(
        event, past, epochs, progress.step, whole, world, accuracy, stall, shares, **epoch.figures
    )


def append(folder: Path, figures: Figures) -> None:
    """Add a line to metrics.jsonl; `time` is in seconds since 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **asdict(figures)})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(line + "\n")
