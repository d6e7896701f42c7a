"""The words and numbers of the page, from runs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kit.report import charts
from kit.report.curves import AXES, Axis, bands, of_epochs, training_losses
from kit.report.predictions import (
    Disagreement,
    Predictions,
    by_class,
    confusion,
    disagreement,
    mistakes,
    predictions,
    successes,
    weakest,
)
from kit.report.record import Run, named
from kit.report.times import KINDS, Comparison, Pace, compare, division, paces, speed, speed_unit
from kit.values import count

MOST_BANDS = 8
"""Charts of ranks; of more ranks the slowest are drawn, and the table has all."""
MOST_CLASSES = 24
"""Classes of a confusion matrix that fits a page."""
MOST_CONFUSED = 12
MOST_ROWS = 50
"""Classes with their accuracy; `kit report --json` has all."""
NONE = "–"

View = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run was deployed from; "" is unknown. The hashes are those of `kit history`."""

    image: str = ""
    by: str = ""
    inventory_hash: str = ""
    job_hash: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory's file as it is now."""

    file: str
    text: str
    hash: str


def view(
    runs: Sequence[Run], origins: Sequence[Origin], inventory: Inventory, most_pictures: int
) -> View:
    """Return the values of the page's template; `most_pictures` of each list of pictures."""
    runs = named(runs)
    known = [predictions(run) for run in runs]
    return {
        "title": _title(runs),
        "comparison": _comparison(compare(runs)),
        "axes": [_axis(runs, axis) for axis in AXES],
        "legend": _legend(runs),
        "epochs": _epochs(runs),
        "division": _division(runs),
        "event_heads": _heads("at", "event*", "epoch", "step", "seconds"),
        "rank_heads": _heads(
            "rank", "host*", "device*", "step, median", "slowest", "own work", "exchange", "pace*"
        ),
        "class_heads": _heads("class", "test samples", "correct", "accuracy"),
        "confused_heads": _heads("true class", "predicted*", "samples", "of the class"),
        "runs": [
            _run(run, origin, predicted, most_pictures)
            for run, origin, predicted in zip(runs, origins, known, strict=True)
        ],
        "pairs": [
            _pair(each)
            for second in runs[1:]
            if (each := disagreement(runs[0], second, most_pictures)) is not None
        ],
        "has_predictions": any(known),
        "has_classes": any(by_class(run) for run in runs),
        "has_samples": any(event.kind == "sample" for run in runs for event in run.events),
        "inventory": _inventory(inventory, origins),
    }


def _title(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"Report of {runs[0].title}"
    return f"Comparison of {', '.join(run.label for run in runs[:-1])} and {runs[-1].label}"


def _heads(*names: str) -> list[View]:
    """Return heads of columns; `*` marks a column of text, `**` one of long text."""
    kinds = {0: "", 1: "text", 2: "wide"}
    return [{"name": name.rstrip("*"), "text": kinds[name.count("*")]} for name in names]


def number(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as text; None as a dash."""
    return NONE if value is None else f"{value:{form}}{unit}"


def share(value: float | None, digits: int = 2) -> str:
    """Return a share in percent."""
    return NONE if value is None else f"{value * 100:.{digits}f} %"


def _comparison(compared: Sequence[Comparison]) -> View:
    unit = speed_unit(compared)
    names = ["run", "ranks", "hosts", "epochs", "steps/epoch", "seconds", "of training", unit]
    several = len(compared) > 1
    names += ["speed-up", "efficiency"] if several else []
    names += ["accuracy", "validation loss", "outcome*"]
    notes = []
    if several:
        notes.append(
            "Speed-up compares the seconds of training, without the start of the processes, with "
            "the first run of the fewest ranks; efficiency divides it by the ratio of ranks. Both "
            "need equal numbers of samples and epochs."
        )
    if any(each.run.state == "not complete" for each in compared):
        notes.append("A run that is not complete is shown up to the last line of its record.")
    return {"heads": _heads(*names), "rows": [_compared(each, several, unit) for each in compared],
            "notes": notes}  # fmt: skip


def _compared(each: Comparison, several: bool, unit: str) -> list[str]:
    relative = [number(each.speedup, ".2f", "\u00a0×"), share(each.efficiency, 0)]
    return [
        each.run.label,
        f"{each.world_size:,}",
        f"{each.hosts:,}",
        f"{each.epochs:,}",
        f"{each.steps_per_epoch:,}",
        f"{each.seconds:.1f}",
        f"{each.training:.1f}",
        number(speed(each, unit), ",.0f"),
        *(relative if several else []),
        share(each.accuracy),
        number(each.validation_loss, ".4f"),
        each.run.state,
    ]


def _axis(runs: Sequence[Run], axis: Axis) -> View:
    losses = [*training_losses(runs, axis), *of_epochs(runs, axis, "validation_loss", "validation")]
    accuracies = of_epochs(runs, axis, "accuracy", "accuracy")
    ends = ", ".join(
        f"{curve.label} ends at {curve.points[-1][1]:.4g}" for curve in losses if curve.points
    )
    best = ", ".join(
        f"{curve.label} ends at {curve.points[-1][1]:.2%}" for curve in accuracies if curve.points
    )
    label = {"epochs": "epochs", "steps": "steps", "seconds": "seconds since the start"}[axis]
    return {
        "name": axis,
        "loss": charts.line_chart(f"Loss over {axis}", ends, losses, label, "loss, nats"),
        "accuracy": charts.line_chart(
            f"Accuracy over {axis}", best, accuracies, label, "accuracy", lambda v: f"{v:.4g}"
        ),
    }


def _legend(runs: Sequence[Run]) -> list[View]:
    return [
        {"label": f"{run.label}: {what}", "number": place % charts.SERIES, "dashed": dashed}
        for place, run in enumerate(runs)
        for what, dashed in (("training", False), ("validation", True))
    ]


def _epochs(runs: Sequence[Run]) -> View:
    names = ["epoch"]
    for run in runs:
        before = f"{run.label}: " if len(runs) > 1 else ""
        own = _own_metrics(run)
        speeds = [title for _, title, _ in _speeds(run)]
        names += [f"{before}loss", "validation loss", "accuracy", *speeds, *own]
    by_run = [{epoch.epoch: epoch for epoch in run.epochs} for run in runs]
    rows = []
    for place in sorted({each for epochs in by_run for each in epochs}):
        row = [str(place)]
        for run, epochs in zip(runs, by_run, strict=True):
            epoch = epochs.get(place)
            row += [
                number(epoch.loss if epoch else None, ".4f"),
                number(epoch.validation_loss if epoch else None, ".4f"),
                share(epoch.accuracy if epoch else None),
                *(
                    number(getattr(epoch, name) if epoch else None, form)
                    for name, _, form in _speeds(run)
                ),
                *(
                    number(epoch.metrics.get(name) if epoch else None, ".6g")
                    for name in _own_metrics(run)
                ),
            ]
        rows.append(row)
    return {"heads": _heads(*names), "rows": rows}


def _speeds(run: Run) -> list[tuple[str, str, str]]:
    """Return an epoch's figures of speed: attribute, title and form."""
    text = any(epoch.tokens_per_second is not None for epoch in run.epochs)
    known = any(epoch.mfu is not None for epoch in run.epochs)
    unit = ("tokens_per_second", "tokens/s", ",.0f")
    units = [unit if text else ("images_per_second", "images/s", ",.0f")]
    return [*units, ("mfu", "MFU", ".1%")] if known else units


def _own_metrics(run: Run) -> list[str]:
    """Return the names of the metrics of a text, or of a model of the user's own."""
    return list(dict.fromkeys(name for epoch in run.epochs for name in epoch.metrics))


def _division(runs: Sequence[Run]) -> View:
    spent = [(run.label, division(run)) for run in runs]
    kinds = [kind for kind in KINDS if any(each[kind] >= 0.05 for _, each in spent)]
    rows = [
        [
            title,
            *(_seconds_and_share(each[kind], each) for kind in kinds),
            f"{sum(each.values()):.1f} s",
        ]
        for title, each in spent
    ]
    return {
        "chart": charts.division_chart(spent),
        "kinds": [(kind, KINDS[kind]) for kind in kinds],
        "heads": _heads("run", *kinds, "all"),
        "rows": rows,
    }


def _seconds_and_share(seconds: float, spent: Mapping[str, float]) -> str:
    return f"{seconds:.1f} s, {share(seconds / (sum(spent.values()) or 1), 0)}"


def _run(run: Run, origin: Origin, predicted: Predictions | None, most: int) -> View:
    known = paces(run)
    drawn = sorted(known, key=lambda pace: -pace.factor)[:MOST_BANDS]
    chosen = {pace.rank.rank for pace in drawn}
    attempts = [each for each in run.attempts if any(rank.windows for rank in each.ranks)]
    shown = [band for band in bands(attempts[-1]) if band.rank in chosen] if attempts else []
    hosts = {pace.rank.rank: pace.rank.host for pace in known}
    limit = charts.limit_of(shown)
    return {
        "title": run.label,
        "time_line": charts.time_line(run),
        "events": [list(row) for row in event_rows(run)],
        "ranks": [_pace(pace) for pace in known],
        "bands": [
            {
                "name": f"Rank {band.rank} on {hosts[band.rank]}: time of a step",
                "svg": charts.band_chart(f"Step time of rank {band.rank}", band, limit),
            }
            for band in shown
        ],
        "more_ranks": f"The {MOST_BANDS} slowest of {len(known)} ranks are drawn."
        if len(known) > MOST_BANDS
        else "",
        "predictions": _predictions(predicted, most) if predicted else None,
        "classes": _classes(run),
        "samples": [event for event in run.events if event.kind == "sample"],
        "details": list(_details(run, origin)),
        "settings": json.dumps(run.facts.get("job", {}), indent=2, ensure_ascii=False),
    }


def _classes(run: Run) -> View | None:
    figures = by_class(run)
    shown = weakest(figures, MOST_ROWS)
    if not shown:
        return None
    which = f"the {MOST_ROWS} of the lowest accuracy" if len(figures) > MOST_ROWS else "all"
    return {
        "words": f"Classes: {len(figures):,}; {which}, the lowest first.",
        "rows": [
            [each.name, f"{each.samples:,}", f"{each.correct:,}", share(each.accuracy)]
            for each in shown
        ],
    }


def _pace(pace: Pace) -> list[str]:
    words = "slow: " if pace.slow else ""
    return [
        str(pace.rank.rank),
        pace.rank.host,
        pace.rank.device,
        f"{pace.median * 1000:.2f} ms",
        f"{pace.slowest * 1000:.2f} ms",
        f"{pace.work * 1000:.2f} ms",
        f"{pace.exchange * 1000:.2f} ms",
        f"{words}{pace.factor:.2f} × the others",
    ]


def event_rows(run: Run) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the events of a run: seconds since its start, words, epoch, step, duration."""
    rows: list[tuple[float, tuple[str, str, str, str, str]]] = []

    def add(time: float, words: str, step: int, epoch: str = "", seconds: str = "") -> None:
        row = (f"{time - run.began:.1f} s", words, epoch, f"{step:,}", seconds)
        rows.append((time, row))

    first = run.attempts[0]
    where = ", ".join(first.hosts)
    add(first.time, f"began with {count(first.world_size, 'rank')} on {where}", first.step)
    for before, after in pairwise(run.attempts):
        lost = max(
            0, max((w.step for r in before.ranks for w in r.windows), default=0) - after.step
        )
        words = f"resumed with {count(after.world_size, 'rank')} on {', '.join(after.hosts)}"
        if (before.world_size, before.hosts) != (after.world_size, after.hosts):
            words += f", before {before.world_size} on {', '.join(before.hosts)}"
        if lost:
            words += f"; {count(lost, 'step')} done again"
        add(after.time, words, after.step, seconds=f"{max(0.0, after.time - before.last):.1f} s")
    for attempt in run.attempts:
        if attempt.reason:
            end = max(each.time for each in attempt.failures)
            steps = (window.step for rank in attempt.ranks for window in rank.windows[-1:])
            add(end, f"interrupted: {attempt.reason}", max(steps, default=attempt.step))
    names = {"saved": "checkpoint", "stop": "stopped, saved", "end": "complete"}
    for event in run.events:
        if event.kind in names:
            pause = f"{event.seconds:.3f} s" if event.kind == "saved" else ""
            add(event.time, names[event.kind], event.step, str(event.epoch), pause)
    return (row for _, row in sorted(rows, key=lambda each: each[0]))


def _predictions(test: Predictions, most: int) -> View:
    counts, total = confusion(test), len(test.truth)
    sizes = {label: test.truth.count(label) for label in set(test.truth)}
    wrong = [(pair, times) for pair, times in counts.most_common() if pair[0] != pair[1]]
    classes = sorted({*test.truth, *test.predicted})
    highest = max((times for _, times in wrong), default=1)
    return {
        "words": f"{test.correct:,} of {total:,} test samples are right, "
        f"{share(test.correct / max(total, 1))}; {total - test.correct:,} are wrong.",
        "mistakes": mistakes(test, most),
        "successes": successes(test, most // 2),
        "labels": [test.label(each) for each in classes],
        "matrix": [
            {
                "label": test.label(row),
                "cells": [
                    _cell(
                        counts[row, column],
                        row == column,
                        sizes.get(row, 0) if row == column else highest,
                    )
                    for column in classes
                ],
            }
            for row in classes
        ]
        if len(classes) <= MOST_CLASSES
        else None,
        "confused": [
            [
                test.label(true),
                test.label(other),
                f"{times:,}",
                share(times / sizes[true], 1),
            ]
            for (true, other), times in wrong[:MOST_CONFUSED]
        ],
    }


def _cell(times: int, hit: bool, most: int) -> View:
    strength = round(8 + 37 * times / max(most, 1)) if times else 0
    return {"number": times, "kind": "hit" if hit else "miss", "share": strength}


def _pair(pair: Disagreement) -> View:
    first, second = pair.first.label, pair.second.label
    neither = pair.number - pair.only_first - pair.only_second
    return {
        "title": f"{first} and {second} disagree",
        "words": f"They disagree on {pair.number:,} of {pair.samples:,} test samples, "
        f"{share(pair.number / max(pair.samples, 1))}: {first} alone is right on "
        f"{pair.only_first:,}, {second} alone on {pair.only_second:,}, neither on {neither:,}. "
        "The most confident first.",
        "names": _short_names(pair.first, pair.second),
        "shown": pair.shown,
    }


def _short_names(first: Run, second: Run) -> tuple[str, str]:
    if first.job != second.job:
        return first.job, second.job
    return "first", "second"


def _details(run: Run, origin: Origin) -> Iterator[tuple[str, str]]:
    facts = run.facts
    hashes = f"inventory {origin.inventory_hash}, job {origin.job_hash}"
    known = {
        "Run": run.title,
        "Began": _date(run.id),
        "Image": origin.image,
        "Deployed by": origin.by,
        "Code": origin.code,
        "Hashes": hashes if origin.inventory_hash else "",
        "Model": _words(facts, "parameters", "{:,.0f} parameters"),
        "Precision": str(facts.get("precision", "")),
        "Global batch": _words(facts, "global_batch", "{:,.0f} samples"),
        "Training samples": _words(facts, "train", "{:,.0f}"),
        "Validation samples": _words(facts, "validation", "{:,.0f}"),
        "Test samples": _words(facts, "test", "{:,.0f}"),
        "Test, once at the end": ", ".join(f"{name} {run.test[name]:.6g}" for name in run.test),
        "Trainer's sources": str(facts.get("trainer", "")),
    }
    yield from ((name, value) for name, value in known.items() if value)
    for rank in run.attempts[-1].ranks:
        gpu = f" {rank.gpu}" if rank.gpu else ""
        yield f"Rank {rank.rank}", f"{rank.host}, {rank.device}{gpu}"
    versions = facts.get("versions")
    for name, value in (versions if isinstance(versions, dict) else {}).items():
        yield str(name), str(value)


def _date(run: str) -> str:
    """Return the time in a run's name."""
    match = re.match(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", run)
    return "{}-{}-{} {}:{}:{} UTC".format(*match.groups()) if match else ""


def _words(facts: Mapping[str, Any], key: str, form: str) -> str:
    value = facts.get(key)
    return form.format(value) if isinstance(value, int | float) else ""


def _inventory(inventory: Inventory, origins: Sequence[Origin]) -> View:
    deployed = {origin.inventory_hash for origin in origins if origin.inventory_hash}
    notes = [f"The file {inventory.file} as it is now, hash {inventory.hash}."]
    if others := sorted(deployed - {inventory.hash}):
        notes.append(
            f"It has changed since: a run was deployed from the one with hash {', '.join(others)}. "
            "The table of ranks has the hosts and GPUs that really took part."
        )
    elif deployed:
        notes.append("The runs were deployed from exactly these entries.")
    return {"file": inventory.file, "text": inventory.text, "notes": notes}
