"""The figures of a training, and metrics.jsonl, which records them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.checkpoints.format import Progress
from trainer.core.run import Run
from trainer.record.telemetry import Figures, Place, Trained


def place_of(run: Run, progress: Progress) -> Place:
    """Return the position in the whole job."""
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # The last step of an epoch may have a smaller batch.
    todo = (epochs - progress.epoch) * -(-samples // batch)
    if progress.position:
        todo += -(-(samples - progress.position) // batch) - -(-samples // batch)
    return Place(progress.epoch, epochs, progress.step, progress.step + todo, run.world.size)


def measure(run: Run, progress: Progress, trained: Trained | None = None) -> Figures:
    """The figures at a position, without those of an evaluation."""
    saver = run.saver
    stall = saver.stalls[-1] if saver.stalls and saver.step == progress.step else None
    shares = tuple(round(share, 4) for share in run.balance.shares)
    return Figures(place_of(run, progress), shares, stall, trained or Trained())


def append(
    folder: Path, event: str, figures: Figures, gpus: Mapping[str, list[str]] | None = None
) -> None:
    """Add a line to metrics.jsonl; `event` is start, epoch, stop or end.

    `gpus` are, at the start, the UUIDs of the GPUs that each host's container sees. Where there is
    a validation, the figures are of its samples: only `test` and the end's accuracy and loss are of
    the test samples.
    """
    found, test = figures.found, figures.test.figures
    line: dict[str, Any] = {
        "time": round(time.time(), 3),  # In seconds since 1970.
        "event": event,
        **vars(figures.place),
        "accuracy": found.accuracy,
        "stall": figures.stall,
        "batch": figures.batch,
        **vars(figures.trained),
        "validation_loss": found.loss if found.samples else None,
        "metrics": found.others,
        "by_class": asdict(found.by_class),
        "best": figures.best,
        "test": test,
        "gpus": gpus or {},
    }
    if event == "end" and test:
        line |= {"accuracy": test.get("accuracy"), "validation_loss": test.get("loss")}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
