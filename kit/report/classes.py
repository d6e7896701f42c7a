"""The accuracy of each class on the test samples of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kit.report.record import Run


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The test samples of a class, and how many of them the trained model classifies correctly."""

    name: str
    samples: int
    correct: int

    @property
    def accuracy(self) -> float | None:
        """The share of the samples that are correct; None without samples."""
        return self.correct / self.samples if self.samples else None


def by_class(run: Run) -> tuple[ClassFigures, ...]:
    """Return the figures of all classes of a trained model; none if they are not known."""
    found = run.by_class or {}
    columns = [found.get(name) for name in ("samples", "correct")]
    samples, correct = (each if isinstance(each, list) else [] for each in columns)
    names = run.facts.get("labels")
    labels = names if isinstance(names, list) else []
    return tuple(
        ClassFigures(str(labels[number]) if number < len(labels) else str(number), *pair)
        for number, pair in enumerate(zip(samples, correct, strict=False))
        if all(type(each) is int for each in pair)
    )


def weakest(figures: tuple[ClassFigures, ...], most: int) -> list[ClassFigures]:
    """Return the classes of the lowest accuracy that have samples, the lowest first."""
    known = [each for each in figures if each.samples]
    return sorted(known, key=lambda each: (each.correct / each.samples, each.name))[:most]
