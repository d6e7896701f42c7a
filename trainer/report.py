"""What people and other programs read: a table, a bar or lines, metrics.jsonl, Prometheus."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from trainer.checkpoint import Progress
from trainer.world import World

HEADER = "  epoch      step      loss  accuracy   images/s  elapsed s  data/compute/exchange %"
BAR = 24  # Characters.
BAR_EVERY, LINE_EVERY = 0.2, 10.0  # Seconds from one to the next.
ERASE = "\r\033[K"  # ECMA-48: to the beginning of the line, and delete to its end.

GAUGES = (
    ("epoch", "Whole epochs done"),
    ("step", "Optimizer steps done"),
    ("loss", "Mean cross entropy per training sample of the epoch so far, nats"),
    ("accuracy", "Share of all test samples that are classified correctly"),
    ("images_per_second", "Training samples per second over all ranks"),
    ("world_size", "Processes over all hosts"),
    ("stall", "Seconds that the training stood still for the last checkpoint"),
    ("data", "Share of all ranks' time in the last epoch that went to data"),
    ("compute", "Share of all ranks' time in the last epoch that went to compute"),
    ("communication", "Share of all ranks' time in the last epoch spent waiting for others"),
)


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


def say(text: str, to: TextIO | None = None) -> None:
    """Write one line, to standard output unless said otherwise."""
    stream = to or sys.stdout
    stream.write(text + "\n")
    stream.flush()


def complain(text: str) -> None:
    """Write one line to standard error."""
    say(text, sys.stderr)


def row(figures: Figures, elapsed: float) -> str:
    """One line of the table under `HEADER`; `elapsed` in seconds."""
    shares = "/".join(f"{share * 100:.0f}" for share in figures.shares.values())
    return (
        f"{figures.epoch:4d}/{figures.epochs:<4d}{figures.step:8d}{figures.loss or 0:10.4f}"
        f"{figures.accuracy or 0:10.4f}{figures.images_per_second or 0:11.0f}{elapsed:11.1f}"
        f"{shares:>24}"
    )


def summary(figures: Figures, steps: int, elapsed: float) -> str:
    """A table to compare whole trainings by; `steps` of an epoch, `elapsed` in seconds."""
    return (
        "processes  steps/epoch  elapsed s   images/s  accuracy\n"
        f"{figures.world_size:9d}{steps:13d}{elapsed:11.1f}{figures.images_per_second or 0:11.0f}"
        f"{figures.accuracy or 0:10.4f}"
    )


def append(folder: Path, figures: Figures) -> None:
    """Add a line to metrics.jsonl; `time` is in seconds since 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": round(time.time(), 3), **asdict(figures)})
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(line + "\n")


class Live:
    """What can be seen between two rows of the table: rank 0's bar or lines, and Prometheus."""

    def __init__(self, world: World, epochs: int, port: int) -> None:
        self._epochs, self._terminal = epochs, world.rank == 0 and sys.stdout.isatty()
        self._lines = world.rank == 0 and not self._terminal
        self._gauges = serve(world, port) if port and world.local_rank == 0 else {}
        self._every = BAR_EVERY if self._terminal else LINE_EVERY
        self._at, self._done = time.monotonic(), -1  # When last shown, and the samples then.

    def tick(self, progress: Progress, samples: int, loss: Tensor, seen: float) -> None:
        """Show a step if it is time: only then wait for this rank's `loss` of `seen` samples."""
        now, whole = time.monotonic(), progress.epoch * samples + progress.position
        if now - self._at < self._every or not (self._terminal or self._lines or self._gauges):
            return
        done = whole if self._done < 0 else self._done
        mean, rate = loss.item() / max(seen, 1), (whole - done) / (now - self._at)
        self._at, self._done = now, whole
        epoch, step = progress.epoch, progress.step
        self.publish(epoch=epoch, step=step, loss=mean, images_per_second=rate)
        share = progress.position / samples
        text = (
            f"epoch {epoch + 1}/{self._epochs} {share * 100:3.0f} %, step {step}, loss {mean:.4f}, "
            f"{rate:.0f} images/s"
        )
        if self._terminal:
            bar = ("#" * round(BAR * share)).ljust(BAR, "-")
            sys.stdout.write(f"{ERASE}[{bar}] {text}")
            sys.stdout.flush()
        elif self._lines:
            say("  " + text)

    def clear(self) -> None:
        """Make room for a row of the table."""
        if self._terminal:
            sys.stdout.write(ERASE)

    def publish(self, **figures: float | None) -> None:
        """Set what Prometheus reads; what is None stays as it was."""
        for name, value in figures.items():
            if self._gauges and value is not None:
                self._gauges[name].set(value)


def serve(world: World, port: int) -> dict[str, Any]:
    """Serve `GAUGES` as kit_training_... at /metrics; none where that can not be."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        start_http_server(port, registry=registry)
    except (ImportError, OSError) as error:
        complain(f"trainer {world.host}: warning: no metrics on port {port}: {error}")
        return {}
    return {name: Gauge(f"kit_training_{name}", text, registry=registry) for name, text in GAUGES}
