"""Whether a training learns, by the mean losses of its epochs."""

from __future__ import annotations

from dataclasses import dataclass

AT_GUESSING = 0.99
"""The share of the loss of guessing from which on a mean over an epoch has learned nothing."""
LEARNED = 0.9
"""The share below which a training has learned something, which it can lose."""
EPOCHS, STEPS = 3, 200
"""Whole epochs and steps after the warm-up before a training that has never learned is ended: large
data sets with many classes begin slowly."""


@dataclass
class Learning:
    """What is known of a run's learning; the same on every rank."""

    guess: float | None = None  # Nats; None: it is not judged.
    learned: bool = False  # In any epoch so far.
    epochs: int = 0  # In a row, at the loss of guessing.
    steps: int = 0  # Of these epochs.
    good: str = ""  # The last checkpoint of an epoch that had learned.
    last: int = 0  # The step at the end of the last epoch.

    def note(self, loss: float | None, step: int, *, warm: bool) -> str:
        """Count an epoch of a mean `loss`; return what is wrong, or nothing.

        `warm`: the rate had risen to its height before the epoch. A loss is unknown if all steps
        were skipped.
        """
        taken, self.last = step - self.last, step
        if self.guess is None or not self.guess or loss is None:
            return ""
        self.learned = self.learned or loss < LEARNED * self.guess
        if loss < AT_GUESSING * self.guess:
            self.epochs = self.steps = 0
            return ""
        if warm:
            self.epochs, self.steps = self.epochs + 1, self.steps + taken
        like = f"its loss {loss:.4g} is that of guessing ({self.guess:.4g})"
        if self.learned:
            return f"has lost what it had learned: {like}"
        if self.epochs >= EPOCHS and self.steps >= STEPS:
            return f"learns nothing: {like} after {self.epochs} epochs"
        return ""
