"""The figures of a running epoch: a bar or lines, and events."""

from __future__ import annotations

import sys
import time

from trainer.checkpoints.format import Progress
from trainer.core.announce import Announcer
from trainer.output import say
from trainer.parallel.world import World
from trainer.record.telemetry import StepFigures

BAR = 24  # Characters.
BAR_EVERY, LINE_EVERY = 0.2, 10.0  # Seconds between two.
ERASE = "\r\033[K"  # ECMA-48: go to the beginning of the line, delete to its end.


class Pace:
    """Decides when to measure again, and measures the speed since the last measurement."""

    def __init__(self) -> None:
        self._at, self._done = time.monotonic(), -1  # The last measurement.

    def due(self, seconds: float) -> bool:
        """Whether the last measurement is at least so many seconds old."""
        return time.monotonic() - self._at >= seconds

    def look(self, samples: int) -> float:
        """Return the samples per second since the last measurement; `samples` are complete."""
        now, done = time.monotonic(), samples if self._done < 0 else self._done
        rate = (samples - done) / max(now - self._at, 1e-9)
        self._at, self._done = now, samples
        return rate


class Live:
    """Shows progress between two rows of the table."""

    def __init__(self, world: World, epochs: int, samples: int, announcer: Announcer) -> None:
        self._epochs, self._samples = epochs, samples
        self._terminal = world.rank == 0 and sys.stdout.isatty()
        self._lines = world.rank == 0 and not self._terminal
        self._shows = world.rank == 0
        self._every = BAR_EVERY if self._terminal else LINE_EVERY
        self._announcer = announcer
        self._people, self._programs = Pace(), Pace()

    def step(self, figures: StepFigures) -> None:
        """Show a step if it is due: only then wait for this rank's loss."""
        shows = self._shows and self._people.due(self._every)
        tells = self._lines and self._programs.due(event_seconds(self._announcer.age()))
        if not shows and not tells:
            return
        progress, loss = figures.progress, figures.mean
        done = progress.epoch * self._samples + progress.position
        if tells:
            # The first measurement gives no speed.
            self._announcer.progress(progress, loss, self._programs.look(done) or None)
        if shows:
            self._show(progress, loss, self._people.look(done))

    def _show(self, progress: Progress, loss: float, rate: float) -> None:
        share, speed = progress.position / self._samples, self._announcer.speed
        text = (
            f"epoch {progress.epoch + 1}/{self._epochs} {share * 100:3.0f} %, "
            f"step {progress.step}, loss {loss:.4f}, {speed.count(rate):.0f} {speed.unit}"
        )
        if self._terminal:
            bar = ("#" * round(BAR * share)).ljust(BAR, "-")
            sys.stdout.write(f"{ERASE}[{bar}] {text}")
            sys.stdout.flush()
        elif self._lines:
            say("  " + text)

    def clear(self) -> None:
        """Erase the bar before a row of the table."""
        if self._terminal:
            sys.stdout.write(ERASE)


def event_seconds(age: float) -> float:
    """Seconds between two events of a training of a given age.

    Docker keeps only the newest lines of a log: in a long run, events must not be most of them.
    """
    return max(1.0, min(10.0, age / 60))
