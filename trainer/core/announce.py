"""The events of a training, which rank 0 prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.core.by_class import named_classes
from trainer.core.speed import Speed
from trainer.core.task import TOP_ACCURACY
from trainer.output import emit
from trainer.parallel.world import World
from trainer.record.telemetry import NOTHING, Evaluation, Figures, Place, Trained


class Announcer:
    """Emits events, and keeps the values that they repeat."""

    def __init__(self, world: World, labels: Sequence[str]) -> None:
        self._world, self._labels = world, labels
        self._began, self._start = time.monotonic(), Place(0, 0, 0, 0, world.size)
        self._resumes = False  # From a checkpoint.
        self.found = NOTHING  # The newest evaluation.
        self.checkpoint: str | None = None  # The newest; the writer's thread sets it.
        self.speed = Speed()
        """How the speed is counted."""

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
        """Record what is known of a training that goes on."""
        self.checkpoint, self.found = checkpoint, found

    def moved(self, world: World) -> Announcer:
        """Return the announcer of another world, which repeats the same values."""
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
        """Report that the training goes on in another group after a pause of `seconds`."""
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
