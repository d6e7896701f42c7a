"""A rank's metrics: measures them, and writes them to a file that the launcher serves."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoints.format import Progress
from trainer.contract.metrics import STEP_BUCKETS, TRAINER
from trainer.core.watch import Goodput, Speed, Watch
from trainer.parallel.world import World
from trainer.record.telemetry import Figures, Place, StepFigures
from trainer.store.files import replace_file

EVERY = 2.0
"""Seconds between two writes. Each write waits for the GPU once, and reads the loss."""
KINDS = {"data": "data", "compute": "compute", "communication": "exchange"}
"""The names in metrics of the watch's kinds."""


class Meter:
    """Measures this rank's metrics.

    KIT_METRICS is the launcher's folder for them; without it, nothing is written. A restarted
    process continues from the counters in the file of its predecessor.
    """

    def __init__(self, world: World, watch: Watch, job: str, environ: Mapping[str, str]) -> None:
        folder = environ.get("KIT_METRICS")
        self._written = 0.0
        self._file = Path(folder, f"rank-{world.local_rank}.json") if folder else None
        gpus = [*environ.get("KIT_GPUS", "").split(","), *[""] * world.local_rank]
        self._labels = {"job": job, "host": world.host, "gpu": gpus[world.local_rank]}
        self.move(world)
        state = self._read()
        self._values: dict[str, float] = state.get("values", {})
        self._ratios: dict[str, float] = state.get("ratios", {})
        self._buckets: list[int] = state.get("buckets", [0] * (len(STEP_BUCKETS) + 1))
        now = time.time()
        launched, started = (float(environ.get(name) or now) for name in ("KIT_BEGAN", "KIT_BORN"))
        self._goodput = Goodput(watch, state.get("seconds", {}), launched, started)
        self._reached = self._values.get("kit_train_step", 0)
        self._saved = 0.0
        self.speed = Speed()
        """Converts the speed to the units of the data."""
        self.unmoved = 0
        """Steps in a row that have not changed the weights."""

    def move(self, world: World) -> None:
        """Measure from now on as a rank of another world; the counters continue."""
        self._world = world
        self._labels["rank"] = str(world.rank)
        self._step_began = 0.0

    def begin(self, place: Place) -> None:
        """Begin to train; all ranks must call it. Steps that any of them repeats count as lost."""
        own = max(self._reached, self._values.get("kit_train_step", 0))
        self._reached = max(self._world.gather(own))
        self._goodput.count("restart")
        self._set("kit_train_start_time_seconds", time.time())
        self._set("kit_train_planned_steps", place.steps)
        self._set("kit_train_planned_epochs", place.epochs)
        self._place(place)
        self._write()

    def begin_epoch(self) -> None:
        """Begin to count the steps of an epoch; the time before the first one is start-up time."""
        if not self._step_began:
            self._goodput.count("restart")
        self._step_began = time.monotonic()

    def step(self, figures: StepFigures) -> None:
        """Count a step; the loss is read only when the file is written."""
        progress, samples = figures.progress, figures.samples
        self.unmoved = 0 if figures.moved else self.unmoved + 1
        now = time.monotonic()
        spent, self._step_began = now - self._step_began, now
        self._buckets[bisect_left(STEP_BUCKETS, spent)] += 1
        self._add("kit_train_step_seconds", spent)
        self._add("kit_train_steps_total", 1)
        self._add("kit_train_images_total", samples)
        if self.speed.tokens:
            self._add("kit_train_tokens_total", samples * self.speed.tokens)
        if progress.step == self._reached:
            self._goodput.count_steps(lost=True)
        if self._file and now - self._written >= EVERY:
            self._place(progress)
            self._set("kit_train_loss", figures.mean)
            self._goodput.count_steps(lost=progress.step <= self._reached)
            self._write()

    def end_steps(self, progress: Progress, skipped: int, loss: float) -> None:
        """End the steps of an epoch, or of its part before an interruption.

        `loss` is set here too: epochs may be too short for a write between their steps.
        """
        self._place(progress)
        self._set("kit_train_loss", loss)
        self._add("kit_train_skipped_steps_total", skipped)
        self._goodput.count_steps(lost=progress.step <= self._reached)

    def evaluated(self) -> float:
        """Count the time since the last steps as a validation; return its seconds."""
        seconds = self._goodput.count("useful")
        self._add("kit_train_validation_seconds_total", seconds)
        return seconds

    def stalled(self, seconds: float) -> None:
        """Count a checkpoint, and the seconds that the training paused for it."""
        self._goodput.count("checkpoint")
        self._add("kit_train_checkpoints_total", 1)
        self._add("kit_train_checkpoint_stall_seconds_total", seconds)

    def waited(self) -> None:
        """Count the time since the last call as waiting for a checkpoint, and write a last time."""
        self._add("kit_train_checkpoint_stall_seconds_total", self._goodput.count("checkpoint"))
        self._write()

    def saved(self) -> None:
        """Record that a checkpoint is complete; the writer's thread calls it."""
        self._saved = time.time()

    def epoch(self, figures: Figures) -> None:
        """Record an epoch; write the last one at once, as no other write follows."""
        found, trained = figures.found, figures.trained
        if found.accuracy is not None:
            self._set("kit_train_validation_accuracy_ratio", found.accuracy)
        self._set("kit_train_validation_loss", found.loss)
        if trained.mfu is not None:
            self._set("kit_train_mfu_ratio", trained.mfu)
        self._ratios = {KINDS[kind]: share for kind, share in trained.shares.items()}
        self._goodput.count("useful")
        if figures.place.last or time.monotonic() - self._written >= EVERY:
            self._write()

    def _place(self, place: Place | Progress) -> None:
        self._set("kit_train_step", place.step)
        self._set("kit_train_epoch", place.epoch)
        self._set("kit_train_unmoved_steps", self.unmoved)

    def _set(self, name: str, value: float) -> None:
        self._values[name] = value

    def _add(self, name: str, value: float) -> None:
        self._values[name] = self._values.get(name, 0) + value

    def _read(self) -> dict[str, Any]:
        """The state of this worker's previous process; empty if there was none."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self._file.read_text()) if self._file else {}
            return found
        return {}

    def _write(self) -> None:
        if self._file is None:
            return
        self._written = time.monotonic()
        self._set("kit_train_update_time_seconds", time.time())
        if self._saved:
            self._set("kit_train_checkpoint_timestamp_seconds", self._saved)
        state = {
            "values": self._values,
            "ratios": self._ratios,
            "buckets": self._buckets,
            "seconds": self._goodput.seconds,
            "families": self._families(),
        }
        with suppress(OSError):  # A full disk must not end a training.
            replace_file(self._file, json.dumps(state).encode(), durable=False)

    def _families(self) -> list[list[Any]]:
        """Each family as launch.py reads it: name, type, meaning, samples."""
        return [
            [metric.name, metric.kind, metric.meaning, samples]
            for metric in TRAINER
            if (samples := self._samples(metric.name))
        ]

    def _samples(self, name: str) -> list[list[Any]]:
        """The samples of a family: suffix of the name, labels, value."""
        many = {
            "kit_train_time_ratio": ("kind", self._ratios),
            "kit_train_seconds_total": ("state", self._goodput.seconds),
            "kit_train_gpu_memory_bytes": ("kind", self._memory()),
        }
        if name == "kit_train_step_seconds":
            return self._histogram(name)
        if name in many:
            label, values = many[name]
            return [["", {**self._labels, label: key}, value] for key, value in values.items()]
        return [["", self._labels, self._values[name]]] if name in self._values else []

    def _histogram(self, name: str) -> list[list[Any]]:
        samples: list[list[Any]] = []
        count = 0
        for bound, number in zip([*STEP_BUCKETS, "+Inf"], self._buckets, strict=True):
            count += number
            samples.append(["_bucket", {**self._labels, "le": str(bound)}, count])
        total = self._values.get(name, 0.0)
        return [*samples, ["_sum", self._labels, total], ["_count", self._labels, count]]

    def _memory(self) -> dict[str, float]:
        device = self._world.device
        if device.type != "cuda":
            return {}
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "peak": torch.cuda.max_memory_allocated(device),
        }
