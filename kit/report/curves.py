"""The curves of runs, thinned to what a chart can show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kit.report.record import Attempt, Epoch, Run, Window

Axis = Literal["epochs", "steps", "seconds"]
AXES: tuple[Axis, ...] = ("epochs", "steps", "seconds")
MOST = 240
"""Columns of a curve: about one for three pixels. Each column keeps its least and largest value, so
that no peak disappears."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a run; `number` is the run's place in the report."""

    label: str
    number: int
    points: tuple[Point, ...]
    dashed: bool = False


def thinned(points: Sequence[Point], most: int = MOST) -> tuple[Point, ...]:
    """Keep the least and the largest value of each of `most` columns; x ascends."""
    if len(points) <= 2 * most:
        return tuple(points)
    first, last = points[0][0], points[-1][0]
    width = (last - first) / most or 1.0
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int((point[0] - first) / width), []).append(point)
    kept: list[Point] = []
    for column in columns.values():
        ends = {min(column, key=lambda point: point[1]), max(column, key=lambda point: point[1])}
        kept += sorted(ends)
    return tuple(kept)


def training_losses(runs: Sequence[Run], axis: Axis) -> list[Curve]:
    """Return the mean loss of the training samples of all ranks, for each window of steps."""
    return [
        Curve(f"{run.label}: training", number, thinned(_losses(run, axis)))
        for number, run in enumerate(runs)
    ]


def _losses(run: Run, axis: Axis) -> list[Point]:
    points: list[Point] = []
    for attempt in run.attempts:
        sums: dict[int, list[float]] = {}
        for rank in attempt.ranks:
            for window in rank.windows:
                if window.loss is not None and attempt.is_kept(window.step):
                    total = sums.setdefault(window.step, [0.0, 0.0])
                    total[0] += window.loss * window.samples
                    total[1] += window.samples
        for window in attempt.ranks[0].windows if attempt.ranks else ():
            total = sums.get(window.step, [0.0, 0.0])
            if total[1]:
                points.append((_x(run, window, axis), total[0] / total[1]))
    return sorted(points)


def _x(run: Run, window: Window | Epoch, axis: Axis) -> float:
    return {"epochs": window.epoch, "steps": window.step, "seconds": window.time - run.began}[axis]


def of_epochs(runs: Sequence[Run], axis: Axis, field: str, label: str) -> list[Curve]:
    """Return a figure of the epochs: `validation_loss` or `accuracy`."""
    return [
        Curve(
            f"{run.label}: {label}",
            number,
            tuple(
                (_x(run, epoch, axis), value)
                for epoch in run.epochs
                if (value := getattr(epoch, field)) is not None
            ),
            dashed=True,
        )
        for number, run in enumerate(runs)
    ]


@dataclass(frozen=True, slots=True)
class Band:
    """The time of a rank's steps in seconds: x is a step, then least, median, most and work."""

    rank: int
    points: tuple[tuple[float, float, float, float, float], ...]


def bands(attempt: Attempt) -> tuple[Band, ...]:
    """Return the bands of an attempt's ranks; a column joins the windows in it."""
    return tuple(Band(rank.rank, _joined(rank.windows)) for rank in attempt.ranks if rank.windows)


BANDS = 80
"""Columns of a band: each has several steps, also of a short run."""


def _joined(windows: Sequence[Window]) -> tuple[tuple[float, float, float, float, float], ...]:
    each = -(-len(windows) // BANDS)
    groups: Iterable[Sequence[Window]] = (
        windows[start : start + each] for start in range(0, len(windows), each)
    )
    return tuple(
        (
            group[-1].step,
            min(window.least for window in group),
            sorted(window.median for window in group)[len(group) // 2],
            max(window.most for window in group),
            sum(window.data + window.compute for window in group)
            / sum(window.steps for window in group),
        )
        for group in groups
    )
