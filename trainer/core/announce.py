"""The events of a training and the figures of a running epoch, which rank 0 prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.core.task import TOP_ACCURACY, named_classes
from trainer.core.watch import Speed
from trainer.output import emit, say
from trainer.parallel.world import World
from trainer.record.telemetry import NOTHING, Evaluation, Figures, Place, StepFigures, Trained


class Announcer:
    """Emits events, and keeps the values that they repeat."""

    def __init__(self, world: World, labels: Sequence[str]) -> None:
        self._world, self._labels = world, labels
        self._began, self._start = time.monotonic(), Place(0, 0, 0, 0, world.size)
        self._resumes = False  # From a checkpoint.
        self.found = NOTHING  # The newest evaluation.
        self.checkpoint: str | None = None  # The newest; the writer's thread sets it.
        self.speed = Speed()
        """Converts the speed to the units of the data."""

    def emit(self, event: events.Event) -> None:
        """Print an event of the training."""
        if self._world.rank == 0:
            emit(event)

    def know(self, checkpoint: str, accuracy: float | None) -> None:
        """Record the checkpoint from which the training resumes."""
        self._resumes = True
        metrics = {} if accuracy is None else {"accuracy": accuracy}
        self.recall(checkpoint, Evaluation(0, nan, metrics))

    def recall(self, checkpoint: str | None, found: Evaluation) -> None:
        """Restore the values of a training that continues."""
        self.checkpoint, self.found = checkpoint, found

    def moved(self, world: World) -> Announcer:
        """Return an announcer for another world, with the same values."""
        moved = Announcer(world, self._labels)
        moved.recall(self.checkpoint, self.found)
        return moved

    def begin(self, place: Place) -> None:
        """Report the place at which the training begins; the speed counts from here."""
        self._began, self._start = time.monotonic(), place
        epochs, steps, size = place.epochs, place.steps, place.world_size
        self.emit(events.Begin(epochs=epochs, steps=steps, world_size=size))
        if self.checkpoint and self._resumes:
            epoch, step = place.epoch, place.step
            self.emit(events.Resumed(epoch=epoch, step=step, checkpoint=self.checkpoint))

    def go_on(self, place: Place, seconds: float) -> None:
        """Report that the training continues in another group after a pause of `seconds`."""
        self._began, self._start = time.monotonic(), place
        self.emit(
            events.Regrouped(
                epoch=place.epoch,
                step=place.step,
                steps=place.steps,
                world_size=place.world_size,
                seconds=round(seconds, 3),
                hosts=tuple(dict.fromkeys(self._world.hosts)),
                reason=self._world.why,
            )
        )

    def age(self) -> float:
        """Seconds since the training began or resumed in this process."""
        return time.monotonic() - self._began

    def progress(self, progress: Progress, loss: float, images_per_second: float | None) -> None:
        """Report the progress within an epoch."""
        place = replace(self._start, epoch=progress.epoch, step=progress.step)
        self._tell(events.Progress, place, Trained(loss, images_per_second))

    def epoch(self, figures: Figures) -> None:
        """Report an epoch that is complete and evaluated."""
        trained, self.found = figures.trained, figures.newest
        by_class = named_classes(self._labels, self.found.by_class)
        self._tell(
            events.Epoch,
            figures.place,
            trained,
            exchange_share=trained.shares.get("communication"),
            class_accuracy={name: accuracy for name, (accuracy, _) in by_class.items()},
            class_samples={name: samples for name, (_, samples) in by_class.items()},
        )

    def saved(self, progress: Progress, checkpoint: str) -> None:
        """Report a checkpoint that is on the disk."""
        self.checkpoint = checkpoint
        self.emit(events.Saved(checkpoint=checkpoint, epoch=progress.epoch, step=progress.step))

    def stopped(self, progress: Progress) -> None:
        """Report that the ranks agreed to stop."""
        epoch, step, checkpoint = progress.epoch, progress.step, self.checkpoint
        self.emit(events.Stopped(epoch=epoch, step=step, checkpoint=checkpoint))

    def _tell(
        self, kind: type[events.Progress], place: Place, trained: Trained, **more: Any
    ) -> None:
        done, left = place.step - self._start.step, place.steps - place.step
        metrics, of_classes = self.found.figures, self.found.classes
        self.emit(
            kind(
                **vars(place),
                loss=trained.loss,
                accuracy=metrics.pop("accuracy", None),
                top5_accuracy=metrics.get(TOP_ACCURACY) if of_classes else None,
                metrics={} if of_classes else metrics,
                images_per_second=trained.images_per_second,
                **self.speed.figures(trained.images_per_second),
                seconds_left=self.age() / done * left if done > 0 else None,
                checkpoint=self.checkpoint,
                **more,
            )
        )


BAR = 24  # Characters.
BAR_EVERY, LINE_EVERY = 0.2, 10.0  # Seconds between two updates.
ERASE = "\r\033[K"  # ECMA-48: go to the beginning of the line, delete to its end.


class Pace:
    """Decides when a measurement is due, and measures the speed since the last one."""

    def __init__(self) -> None:
        self._at, self._done = time.monotonic(), -1  # The last measurement.

    def due(self, seconds: float) -> bool:
        """Whether the last measurement is at least `seconds` old."""
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
        """Show a step if an update is due; wait for this rank's loss only in this case."""
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
