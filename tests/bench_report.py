"""The time of `kit report` on long runs, and the time that recording takes of a training.

    python -m tests.bench_report [--steps 1000 10000 100000] [--ranks 3]

The trainer's own Recorder writes the records of a run that computes nothing. Reading, the page and
its size are measured, and the time of one `Recorder.step`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kit.report.collect import runs_of
from kit.report.page import page
from kit.report.run_view import Origin
from kit.report.view import Inventory
from kit.runtime.record_files import from_folder
from tests.trainer.hosts import write_job
from trainer.checkpoints.format import Progress
from trainer.core.job import load_job
from trainer.data.samples import DataSet, Samples
from trainer.record.recorder import Recorder
from trainer.record.telemetry import StepFigures

EPOCHS = 10


def record(folder: Path, steps: int, rank: int, ranks: int) -> float:
    """Write a rank's record of so many steps; return the seconds of one `step`."""
    folder.mkdir(exist_ok=True)
    job = load_job(write_job(folder, "long", epochs=EPOCHS))
    device = torch.device("cpu")
    world: Any = SimpleNamespace(
        rank=rank,
        local_rank=0,
        size=ranks,
        host=f"n{rank}",
        device=device,
        gather=lambda value: [value],
    )
    inputs, labels = (
        torch.zeros(100, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(100, dtype=torch.int64),
    )
    samples = Samples(inputs, labels)
    data = DataSet(samples, samples, torch.zeros(1), torch.ones(1), 10, labels=tuple("0123456789"))
    spent = dict.fromkeys(("data", "compute", "communication"), 0.0)
    recorder = Recorder(job, world, folder, time.monotonic())
    recorder.run = "20261122-120000-beef"
    recorder.begin(Progress(), data, {"global_batch": 10}, lambda: dict(spent))
    seconds, per_epoch = 0.0, steps // EPOCHS
    for epoch in range(EPOCHS):
        recorder.start_epoch()
        for step in range(per_epoch):
            place = Progress(epoch, step % 100, epoch * per_epoch + step + 1)
            loss = torch.tensor(2.0 * (step + 1))
            figures = StepFigures(place, 1, moved=True, loss=loss, seen=step + 1.0)
            spent["compute"] += 0.01
            began = time.perf_counter()
            recorder.step(figures)
            seconds += time.perf_counter() - began
        end = Progress(epoch + 1, 0, (epoch + 1) * per_epoch)
        recorder.end_window(replace(figures, progress=end))
        recorder.note("epoch", end, loss=2.0, accuracy=0.9, validation_loss=2.1)
    recorder.note("end", end)
    return seconds / steps


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--ranks", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(" steps  lines/rank  µs/step  read s  page s  page kB")
    for steps in chosen.steps:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cost = max(record(folder, steps, rank, chosen.ranks) for rank in range(chosen.ranks))
            began = time.perf_counter()
            files = list(from_folder("n0", folder))
            runs = runs_of("long", files)
            read = time.perf_counter() - began
            inventory = Inventory("inventory.yaml", "", "")
            about = {"cluster": "bench", "written": "", "version": ""}
            text = page(runs, [Origin()], inventory, **about)
            made = time.perf_counter() - began - read
            lines = files[0].content.count(b"\n")
            print(
                f"{steps:6d}{lines:12d}{cost * 1e6:9.1f}{read:8.2f}{made:8.2f}"
                f"{len(text.encode()) / 1000:9.0f}"
            )


if __name__ == "__main__":
    main()
