"""The events of a training, which rank 0 prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from types import MappingProxyType

from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.core.speed import Speed
from trainer.output import emit
from trainer.parallel.world import World


class Announcer:
    """Emits events, and keeps the values that they repeat: accuracy, checkpoint, speed."""

    def __init__(self, world: World, epochs: int) -> None:
        self._silent, self._size, self._epochs = world.rank != 0, world.size, epochs
        self._hosts, self._why = tuple(dict.fromkeys(world.hosts)), world.why
        self._began, self._first = time.monotonic(), 0  # Time and step at which this process began.
        self._steps = 0  # Of the whole job.
        self._resumes = False  # From a checkpoint.
        self._accuracy: float | None = None
        self._metrics: dict[str, float] = {}
        self._top5: float | None = None
        self._checkpoint: str | None = None
        self.speed = Speed()
        """How the speed is counted."""

    def emit(self, event: events.Event) -> None:
        """Print an event of the training."""
        if not self._silent:
            emit(event)

    def know(self, checkpoint: str, accuracy: float | None) -> None:
        """Record the checkpoint from which the training resumes."""
        self._resumes = True
        self.recall(checkpoint, accuracy)

    def recall(self, checkpoint: str | None, accuracy: float | None) -> None:
        """Record what is known of a training that goes on."""
        self._checkpoint, self._accuracy = checkpoint, accuracy

    def know_metrics(
        self, accuracy: float | None, metrics: dict[str, float], top5: float | None
    ) -> None:
        """Record the newest accuracies and the user's own metrics."""
        self._accuracy, self._top5 = accuracy, top5
        self._metrics = {name: value for name, value in metrics.items() if isfinite(value)}

    @property
    def known(self) -> tuple[str | None, float | None]:
        """The newest checkpoint, and the newest accuracy."""
        return self._checkpoint, self._accuracy

    def moved(self, world: World) -> Announcer:
        """Return the announcer of another world, which repeats the same values."""
        moved = Announcer(world, self._epochs)
        moved.recall(*self.known)
        moved.know_metrics(self._accuracy, self._metrics, self._top5)
        return moved

    def begin(self, progress: Progress, steps: int) -> None:
        """Report the position at which the training begins; the speed counts from here."""
        self._began, self._first, self._steps = time.monotonic(), progress.step, steps
        self.emit(events.Begin(epochs=self._epochs, steps=steps, world_size=self._size))
        if self._checkpoint and self._resumes:
            epoch, step = progress.epoch, progress.step
            self.emit(events.Resumed(epoch=epoch, step=step, checkpoint=self._checkpoint))

    def go_on(self, progress: Progress, steps: int, seconds: float) -> None:
        """Report that the training goes on in another group after a pause of `seconds`."""
        self._began, self._first, self._steps = time.monotonic(), progress.step, steps
        self.emit(
            events.Regrouped(
                epoch=progress.epoch,
                step=progress.step,
                steps=steps,
                world_size=self._size,
                seconds=round(seconds, 3),
                hosts=self._hosts,
                reason=self._why,
            )
        )

    def age(self) -> float:
        """Seconds since the training began or resumed in this process."""
        return time.monotonic() - self._began

    def progress(self, progress: Progress, loss: float, images_per_second: float | None) -> None:
        """Report the progress within an epoch."""
        self._tell(events.Progress, progress, loss, images_per_second)

    def epoch(
        self,
        progress: Progress,
        loss: float | None,
        images_per_second: float | None,
        exchange_share: float | None = None,
        by_class: Mapping[str, tuple[float, int]] = MappingProxyType({}),
    ) -> None:
        """Report an epoch that is complete and evaluated.

        `by_class` has the accuracy and the samples of some classes.
        """
        kind = partial(
            events.Epoch,
            exchange_share=exchange_share,
            class_accuracy={name: accuracy for name, (accuracy, _) in by_class.items()},
            class_samples={name: samples for name, (_, samples) in by_class.items()},
        )
        self._tell(kind, progress, loss, images_per_second)

    def saved(self, progress: Progress, checkpoint: str) -> None:
        """Report a checkpoint that is on the disk."""
        self._checkpoint = checkpoint
        epoch, step = progress.epoch, progress.step
        self.emit(events.Saved(checkpoint=checkpoint, epoch=epoch, step=step))

    def stopped(self, progress: Progress) -> None:
        """Report that the ranks agreed to stop."""
        epoch, step, checkpoint = progress.epoch, progress.step, self._checkpoint
        self.emit(events.Stopped(epoch=epoch, step=step, checkpoint=checkpoint))

    def _tell(
        self,
        kind: Callable[..., events.Progress],
        progress: Progress,
        loss: float | None,
        images_per_second: float | None,
    ) -> None:
        done, left = progress.step - self._first, self._steps - progress.step
        self.emit(
            kind(
                epoch=progress.epoch,
                epochs=self._epochs,
                step=progress.step,
                steps=self._steps,
                world_size=self._size,
                loss=loss,
                accuracy=self._accuracy,
                top5_accuracy=self._top5,
                metrics=self._metrics,
                images_per_second=images_per_second,
                **self.speed.figures(images_per_second),
                seconds_left=self.age() / done * left if done > 0 else None,
                checkpoint=self._checkpoint,
            )
        )
