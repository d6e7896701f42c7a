"""The predictions of a run's trained model on the test samples, and its accuracy by class. Pure."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.report.record import Run

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Test samples with their class, the predicted one and its probability, a share.

    `indices` are their places in the test set; `pictures` are PNG files in base64 by index.
    """

    data: str
    labels: tuple[str, ...]
    indices: tuple[int, ...]
    truth: tuple[int, ...]
    predicted: tuple[int, ...]
    confidence: tuple[float, ...]
    pictures: Mapping[int, str]

    def label(self, number: int) -> str:
        """Return the name of a class."""
        return self.labels[number] if 0 <= number < len(self.labels) else str(number)

    @property
    def correct(self) -> int:
        """The number of samples with the right class."""
        return sum(map(int.__eq__, self.truth, self.predicted))


@dataclass(frozen=True, slots=True)
class Shown:
    """A test sample to show: its picture ("" if there is none), and what each run says of it."""

    index: int
    picture: str
    truth: str
    predicted: tuple[str, ...]
    confidence: tuple[float, ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each run is right."""
        return tuple(each == self.truth for each in self.predicted)


def predictions(run: Run) -> Predictions | None:
    """Return a run's predictions; None if there are none, or they are damaged."""
    found = run.evaluation
    try:
        return _read(found, tuple(map(str, run.facts.get("labels", ())))) if found else None
    except (KeyError, TypeError, ValueError, binascii.Error, struct.error):
        return None


def _read(found: Mapping[str, Any], labels: tuple[str, ...]) -> Predictions:
    truth, predicted = _integers(found["truth"], "h"), _integers(found["predicted"], "h")
    confidence = tuple(value / 255 for value in _integers(found["confidence"], "B"))
    if not len(truth) == len(predicted) == len(confidence):
        raise ValueError("lengths differ")
    every = int(found["every"])
    return Predictions(
        data=str(found["data"]),
        labels=labels,
        indices=tuple(range(0, len(truth) * every, every)),
        truth=truth,
        predicted=predicted,
        confidence=confidence,
        pictures={
            int(index): content
            for index, content in dict(found["pictures"]).items()
            if isinstance(content, str) and _BASE64.fullmatch(content)
        },
    )


def _integers(text: str, kind: str) -> tuple[int, ...]:
    content = base64.b64decode(text, validate=True)
    return struct.unpack(f"<{len(content) // struct.calcsize(kind)}{kind}", content)


def mistakes(found: Predictions, most: int) -> list[Shown]:
    """Return wrong predictions with a picture, the most confident first."""
    return _shown(found, [n for n in _ranked(found) if not _is_right(found, n)], most)


def successes(found: Predictions, most: int) -> list[Shown]:
    """Return right predictions with a picture, with equal distances in the test set."""
    right = [n for n in range(len(found.truth)) if _is_right(found, n)]
    pictured = [n for n in right if found.indices[n] in found.pictures]
    return _shown(found, pictured[:: -(-len(pictured) // max(most, 1)) or 1], most)


def _is_right(found: Predictions, number: int) -> bool:
    return found.truth[number] == found.predicted[number]


def _ranked(found: Predictions) -> list[int]:
    return sorted(range(len(found.truth)), key=lambda number: -found.confidence[number])


def _shown(found: Predictions, numbers: list[int], most: int) -> list[Shown]:
    pictured = [number for number in numbers if found.indices[number] in found.pictures]
    return [
        Shown(
            index=found.indices[number],
            picture=found.pictures[found.indices[number]],
            truth=found.label(found.truth[number]),
            predicted=(found.label(found.predicted[number]),),
            confidence=(found.confidence[number],),
        )
        for number in pictured[:most]
    ]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The test samples that two runs classify differently."""

    first: Run
    second: Run
    samples: int
    number: int
    only_first: int
    only_second: int
    shown: tuple[Shown, ...]


def disagreement(first: Run, second: Run, most: int) -> Disagreement | None:
    """Compare two runs on the same test samples; None if they have not the same."""
    one, two = predictions(first), predictions(second)
    if one is None or two is None or (one.data, one.indices) != (two.data, two.indices):
        return None
    numbers = [n for n in range(len(one.truth)) if one.predicted[n] != two.predicted[n]]
    numbers.sort(key=lambda n: -max(one.confidence[n], two.confidence[n]))
    pictures = {**two.pictures, **one.pictures}
    shown = tuple(
        Shown(
            index=one.indices[n],
            picture=pictures[one.indices[n]],
            truth=one.label(one.truth[n]),
            predicted=(one.label(one.predicted[n]), two.label(two.predicted[n])),
            confidence=(one.confidence[n], two.confidence[n]),
        )
        for n in [n for n in numbers if one.indices[n] in pictures][:most]
    )
    return Disagreement(
        first=first,
        second=second,
        samples=len(one.truth),
        number=len(numbers),
        only_first=sum(_is_right(one, n) for n in numbers),
        only_second=sum(_is_right(two, n) for n in numbers),
        shown=shown,
    )


def confusion(found: Predictions) -> Counter[tuple[int, int]]:
    """Count the test samples by their class and the predicted one."""
    return Counter(zip(found.truth, found.predicted, strict=True))


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
    figures = run.by_class or {}
    columns = [figures.get(name) for name in ("samples", "correct")]
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
