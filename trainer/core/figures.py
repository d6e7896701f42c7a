"""The figures of a training, and metrics.jsonl, which records them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.core.by_class import ByClass
from trainer.core.epoch import EpochResult
from trainer.core.run import Run


@dataclass(frozen=True)
class Figures:
    """One line of metrics.jsonl, without its time."""

    event: str  # start, epoch, stop or end.
    epoch: int  # Whole epochs done.
    epochs: int  # Of the job.
    step: int  # Optimizer steps done.
    steps: int  # Of the whole job; the rest at the present world size.
    world_size: int  # Processes over all hosts.
    accuracy: float | None  # Share of the test samples classified correctly.
    stall: float | None  # Seconds that training paused for the checkpoint of this step.
    batch: tuple[float, ...]  # Each rank's share of the global batch.
    loss: float | None = None  # Mean cross entropy of the epoch's training samples so far, nats.
    images_per_second: float | None = None  # Over all ranks, without evaluation and saving.
    validation_loss: float | None = None  # Mean cross entropy of the test samples, nats.
    skipped: tuple[int, ...] = ()  # Steps of the epoch skipped for a loss that is not finite.
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of all ranks' time: data, compute, communication that compute does not hide."""
    slow: dict[str, float] = field(default_factory=dict)
    """Slow ranks, with the ratio of their time to that of the others."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Other means over the test samples by name, such as top5_accuracy or perplexity."""
    by_class: ByClass = field(default_factory=ByClass)
    """The test samples of each class."""
    tokens_per_second: float | None = None  # Of a text.
    mfu: float | None = None  # Share of the GPUs' peak; of a text, where the peak is known.
    best: str = ""  # At the end, if there is a validation: the checkpoint that was tested.
    test: dict[str, float] = field(default_factory=dict)
    """At the end, if there is a validation: the means over the test samples by name. All other
    figures are then of the validation samples."""
    gpus: dict[str, list[str]] = field(default_factory=dict)
    """At the start: the UUIDs of the GPUs that each host's container sees."""


def measure(run: Run, event: str, epoch: EpochResult, accuracy: float | None = None) -> Figures:
    """The figures of an event."""
    progress, saver = epoch.progress, run.saver
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # The last step of an epoch may have a smaller batch.
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
