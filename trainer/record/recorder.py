"""Writes the record of a run: each rank writes its steps, rank 0 also the figures of all ranks."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.contract.allocation import read_allocation
from trainer.contract.job import TrainJob
from trainer.data.samples import DataSet
from trainer.output import emit, say_error
from trainer.parallel.world import World, is_lost_peer
from trainer.record import files
from trainer.record.board import Board
from trainer.record.telemetry import Figures, Place, StepFigures
from trainer.store.files import replace_file

WINDOWS = 250
"""A window of steps is one line. It has one step up to step 250, later 1/250 of all steps so far:
100,000 steps make about 1,750 lines. All ranks have the same windows."""
DELAY = 1.0
"""Seconds that lines of steps may wait in memory: opening the file takes longer than some steps."""
PACE = 10.0
"""Seconds between two `pace` events of a rank, from which `kit top` shows its step time."""


REASON = 300
"""Characters of the reason of a failure."""


class Recorder:
    """The record of this rank. An error of its disk never ends the training."""

    def __init__(self, job: TrainJob, world: World, folder: Path, started: float) -> None:
        self.run = ""
        """The name of the run; a resumed training continues the run of its checkpoint."""
        self._job, self._world, self._folder, self._started = job, world, folder, started
        self._file: Path | None = None
        self._board: Board | None = None
        self._watch: Callable[[], dict[str, float]] = dict
        self._spans: list[float] = []  # Seconds of each step of the window.
        self._last = self._paced = 0.0
        self._loss, self._seen = 0.0, 0.0  # Sums at the end of the last window.
        self._spent: dict[str, float] = {}
        self._lines: list[str] = []  # Not yet written.
        self._written = 0.0

    def begin(
        self,
        progress: Progress,
        data: DataSet,
        about: dict[str, Any],
        watch: Callable[[], dict[str, float]],
    ) -> None:
        """Begin to record at a position; rank 0 records `about` too. All ranks must call it.

        `watch` returns the seconds of this rank by kind of work.
        """
        job = asdict(self._job)
        own = self._world.rank == 0 and not self.run and files.unfinished(self._folder, job)
        # The clocks of hosts differ: rank 0's time, in ms, names the attempt on all of them.
        run, attempt = self._world.gather((own or files.new_run(), int(time.time() * 1000)))[0]
        self.run = self.run or run
        self._watch = watch
        self._file = self._open()
        own_facts = {
            "attempt": attempt,
            "rank": self._world.rank,
            "world_size": self._world.size,
            "host": self._world.host,
            **device_facts(self._world),
            "step": progress.step,
            "epoch": progress.epoch,
            **queue_facts(),
            "setup": time.monotonic() - self._started,
        }
        if self._world.rank == 0:
            own_facts |= {"job": job, "versions": versions(), **about, **data_facts(data)}
            if self._job.train.tensorboard:
                self._board = Board(self._folder / "tensorboard" / self.run)
        self._write("begin", own_facts)

    def _open(self) -> Path | None:
        file = files.rank_file(self._folder, self.run, self._world.rank)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if self._world.local_rank == 0:
                files.prune(self._folder)
        except OSError as error:
            self._warn(error)
            return None
        return file

    def start_epoch(self) -> None:
        """Begin to measure steps: the time until now does not belong to a step."""
        self._last, self._spent = time.monotonic(), self._watch()
        self._loss = self._seen = 0.0
        self._paced = self._paced or self._last

    def step(self, figures: StepFigures) -> None:
        """Count a step."""
        now = time.monotonic()
        self._spans.append(now - self._last)
        self._last = now
        if len(self._spans) >= max(1, figures.progress.step // WINDOWS):
            self.end_window(figures)

    def end_window(self, figures: StepFigures) -> None:
        """Write the window of the steps since the last one."""
        if not self._spans:
            return
        progress, total = figures.progress, figures.loss.item()
        spent, spans = self._watch(), sorted(self._spans)
        samples = figures.seen - self._seen
        own = {kind: spent[kind] - self._spent.get(kind, 0.0) for kind in spent}
        values = {
            **vars(progress),
            "steps": len(spans),
            "seconds": sum(spans),
            "median": statistics.median(spans),
            "least": spans[0],
            "most": spans[-1],
            "samples": samples,
            "loss": (total - self._loss) / samples if samples else None,
            **own,
        }
        self._loss, self._seen, self._spent, self._spans = total, figures.seen, spent, []
        self._write("steps", values)
        if self._board and values["loss"] is not None:
            self._board.add("loss/train", values["loss"], progress.step)
        if self._last - self._paced >= PACE:
            self._paced = self._last
            self._pace(progress.step, values)

    def _pace(self, step: int, values: dict[str, Any]) -> None:
        number = values["steps"]
        emit(
            events.Pace(
                rank=self._world.rank,
                local_rank=self._world.local_rank,
                step=step,
                step_seconds=values["seconds"] / number,
                data_seconds=values["data"] / number,
                compute_seconds=values["compute"] / number,
                exchange_seconds=values["communication"] / number,
            )
        )

    def epoch(self, figures: Figures) -> None:
        """Write an epoch, with its classes only at the end: 1,000 of them take some 10 kB."""
        found, trained, classes = figures.found, figures.trained, figures.newest.by_class
        values = vars(trained) | {
            "accuracy": found.accuracy,
            "validation_loss": found.loss,
            "metrics": found.others,
            "evaluation": figures.seconds,
            "skipped": len(trained.skipped),
            "by_class": asdict(classes) if figures.place.last and classes.samples else None,
            "test": figures.test.figures if figures.best else None,
        }
        del values["shares"]  # The windows of steps have each rank's seconds.
        self.note("epoch", figures.place, **values)
        if self._board:
            self._board.add_epoch(values, figures.place.step)

    def note(self, record: str, place: Place | Progress, **values: Any) -> None:
        """Write an event of the run: epoch, saved, sample, stop or end. Rank 0 alone writes it."""
        if self._world.rank == 0:
            self._write(record, {"step": place.step, "epoch": place.epoch, **values})

    def failed(self, error: Exception) -> None:
        """Write why this rank ends; mark a lost peer, whose own record may have the reason."""
        lines = str(error).splitlines()
        reason = ": ".join((type(error).__name__, *lines[:1]))[:REASON]
        peer = isinstance(error, RuntimeError) and is_lost_peer(error)
        self._write("failed", {"reason": reason, "peer": peer})

    def evaluation(self, content: dict[str, Any] | None) -> None:
        """Write the predictions of the trained model; None on the other ranks."""
        if self._file and content is not None:
            try:
                text = json.dumps(content, ensure_ascii=False)
                file = self._file.with_name(files.EVALUATION)
                replace_file(file, text.encode(), durable=False)
            except OSError as error:
                self._warn(error)

    def close(self) -> None:
        """Write the lines that are still in memory."""
        if self._file:
            self._flush(self._file)
        if self._board:
            self._board.close()

    def _write(self, record: str, values: dict[str, Any]) -> None:
        """Write a line; lines of steps wait for later ones, for at most `DELAY`."""
        if self._file is None:
            return
        self._lines.append(files.line(record, values))
        if record != "steps" or time.monotonic() - self._written >= DELAY:
            self._flush(self._file)

    def _flush(self, file: Path) -> None:
        try:
            files.append(file, self._lines)
        except OSError as error:
            self._warn(error)
        self._lines, self._written = [], time.monotonic()

    def _warn(self, error: OSError) -> None:
        """Report once that the record cannot be written; the training continues without it."""
        self._file = None
        say_error(f"trainer {self._world.host}: warning: no record for kit report: {error}")


def device_facts(world: World) -> dict[str, Any]:
    """Describe the device of this rank."""
    if world.device.type != "cuda":
        return {"device": platform.machine(), "gpu": ""}
    seen = [uuid for uuid in os.environ.get("KIT_GPUS", "").split(",") if uuid]
    gpu = seen[world.local_rank] if world.local_rank < len(seen) else ""
    return {"device": torch.cuda.get_device_name(world.device), "gpu": gpu}


def queue_facts() -> dict[str, Any]:
    """Describe this host's allocation, if a queue has started the job."""
    own = read_allocation(os.environ)
    # The record rounds floats to six digits, which is too few for a time: so it is an integer.
    return {"queue": {**own._asdict(), "since": round(own.since)}} if own else {}


def data_facts(data: DataSet) -> dict[str, Any]:
    """Describe the data set; the characters of a text are not classes."""
    text = data.text
    labels = [] if text else list(data.labels[:1000])
    validation = {} if data.validation is None else {"validation": len(data.validation)}
    numbers = {"train": len(data.train), **validation, "test": len(data.test)}
    return {**numbers, "text": text, "labels": labels}


def versions() -> dict[str, str]:
    """Return the versions of this process's software."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {**found, "system": platform.platform()}
