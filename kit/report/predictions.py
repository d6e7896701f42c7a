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
class ShownSample:
    """A test sample to show: its picture ("" if there is none), and the prediction of each run."""

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
    if not run.evaluation:
        return None
    try:
        return _read(run.evaluation, tuple(map(str, run.facts.get("labels", ()))))
    except (KeyError, TypeError, ValueError, binascii.Error, struct.error):
        return None


def _read(evaluation: Mapping[str, Any], labels: tuple[str, ...]) -> Predictions:
    truth, predicted = _integers(evaluation["truth"], "h"), _integers(evaluation["predicted"], "h")
    confidence = tuple(value / 255 for value in _integers(evaluation["confidence"], "B"))
    if not len(truth) == len(predicted) == len(confidence):
        raise ValueError("lengths differ")
    every = int(evaluation["every"])
    return Predictions(
        data=str(evaluation["data"]),
        labels=labels,
        indices=tuple(range(0, len(truth) * every, every)),
        truth=truth,
        predicted=predicted,
        confidence=confidence,
        pictures={
            int(index): content
            for index, content in dict(evaluation["pictures"]).items()
            if isinstance(content, str) and _BASE64.fullmatch(content)
        },
    )


def _integers(text: str, kind: str) -> tuple[int, ...]:
    content = base64.b64decode(text, validate=True)
    return struct.unpack(f"<{len(content) // struct.calcsize(kind)}{kind}", content)


def mistakes(predicted: Predictions, most: int) -> list[ShownSample]:
    """Return wrong predictions with a picture, the most confident first."""
    return _shown(predicted, [n for n in _ranked(predicted) if not _is_right(predicted, n)], most)


def successes(predicted: Predictions, most: int) -> list[ShownSample]:
    """Return right predictions with a picture, with equal distances in the test set."""
    right = [n for n in range(len(predicted.truth)) if _is_right(predicted, n)]
    pictured = [n for n in right if predicted.indices[n] in predicted.pictures]
    return _shown(predicted, pictured[:: -(-len(pictured) // max(most, 1)) or 1], most)


def _is_right(predicted: Predictions, number: int) -> bool:
    return predicted.truth[number] == predicted.predicted[number]


def _ranked(predicted: Predictions) -> list[int]:
    return sorted(range(len(predicted.truth)), key=lambda number: -predicted.confidence[number])


def _shown(predicted: Predictions, numbers: list[int], most: int) -> list[ShownSample]:
    pictured = [number for number in numbers if predicted.indices[number] in predicted.pictures]
    return [
        ShownSample(
            index=predicted.indices[number],
            picture=predicted.pictures[predicted.indices[number]],
            truth=predicted.label(predicted.truth[number]),
            predicted=(predicted.label(predicted.predicted[number]),),
            confidence=(predicted.confidence[number],),
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
    shown: tuple[ShownSample, ...]


def disagreement(first: Run, second: Run, most: int) -> Disagreement | None:
    """Compare two runs on the same test samples; None if their samples differ."""
    one, two = predictions(first), predictions(second)
    if one is None or two is None or (one.data, one.indices) != (two.data, two.indices):
        return None
    numbers = [n for n in range(len(one.truth)) if one.predicted[n] != two.predicted[n]]
    numbers.sort(key=lambda n: -max(one.confidence[n], two.confidence[n]))
    pictures = {**two.pictures, **one.pictures}
    shown = tuple(
        ShownSample(
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


def confusion(predicted: Predictions) -> Counter[tuple[int, int]]:
    """Count the test samples by their class and the predicted one."""
    return Counter(zip(predicted.truth, predicted.predicted, strict=True))


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
