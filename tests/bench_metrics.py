"""The cost of metrics and records for a training: `python -m tests.bench_metrics`.

Epochs of one training take turns in one process: with metrics, written every two seconds, with the
record for `kit report` too, and with neither. The metrics are read every second beside all. The
time of processors counts, besides the time of the clock: other work on the machine hardly changes
it.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.epochs import images_like
from tests.ports import free_port
from tests.turns import compare, turns
from trainer.checkpoints.format import Progress
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.epoch import train_epoch
from trainer.core.run import Run, Stop
from trainer.core.setup import set_up
from trainer.launcher.metrics import serve_metrics
from trainer.parallel.world import join_world
from trainer.record.telemetry import Place

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_metrics")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    parser.add_argument("--samples", type=int, default=16_000, help="of an epoch")
    given = parser.parse_args()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, batch {BATCH}, {given.repeats} turns"
    )
    with tempfile.TemporaryDirectory() as folder:
        metered = training(given.samples, Path(folder))
        sides = {
            "with neither": epochs(
                replace(metered, meter=mock.Mock(unmoved=0), recorder=mock.Mock())
            ),
            "with metrics": epochs(replace(metered, recorder=mock.Mock())),
            "with metrics and records": epochs(metered),
        }
        turns(1, sides)
        stop, scrapes = scraped(Path(folder))
        found = turns(given.repeats, sides)
        stop()
    for at, what in enumerate(("s by the clock", "s of processors, aim <= 1.01")):
        neither, *others = ([each[at] for each in measured] for measured in found.values())
        print(f"  with neither{statistics.median(neither):>40.3f} {what.split(',')[0]}")
        for name, other in zip(list(found)[1:], others, strict=True):
            compare(f"{name} / neither", other, neither, what)
    print(f"  a scrape{statistics.median(scrapes) * 1000:>50.2f} ms")


def training(samples: int, folder: Path) -> Run:
    """A training of random images, with its metrics in a folder."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (samples,), generator=draw)
    settings = Train(
        dataset="cifar10", model="lenet", epochs=9999, batch_size=BATCH, learning_rate=0.001
    )
    job = TrainJob("bench", settings, Exchange(), Checkpoint(), Metrics())
    world = join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))
    with mock.patch.dict(os.environ, {"KIT_METRICS": str(folder)}), redirect_stdout(io.StringIO()):
        run = set_up(job, world, images_like(images, labels), folder, time.monotonic())
    run.meter.begin(Place(0, 9999, 0, 9999, 1))
    run.recorder.begin(Progress(), run.data, {}, run.watch.read)
    return run


def epochs(run: Run) -> Callable[[], tuple[float, float]]:
    """Return a function that trains the next epoch: its seconds by the clock, and of processors."""
    progress, stop = Progress(0, 0, 0), Stop()

    def run_epoch() -> tuple[float, float]:
        nonlocal progress
        began, worked = time.perf_counter(), time.process_time()
        with redirect_stdout(io.StringIO()):
            progress = train_epoch(run, progress, stop).progress
        return time.perf_counter() - began, time.process_time() - worked

    return run_epoch


def scraped(folder: Path) -> tuple[Callable[[], Any], list[float]]:
    """Serve the metrics and ask for them every second; return the end of it, and the seconds."""
    port, stop, seconds = free_port(), threading.Event(), list[float]()
    place = '{"local_rank": 0, "rank": 0, "began": 0, "world_size": 1, "restarts": 0}'
    (folder / "worker-0.json").write_text(place)
    serve_metrics(("127.0.0.1", port), folder)

    def ask() -> None:
        while not stop.wait(1):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert b"kit_train_steps_total" in answer.read()
            seconds.append(time.perf_counter() - began)

    threading.Thread(target=ask, daemon=True).start()
    return stop.set, seconds


if __name__ == "__main__":
    main()
