"""The words and numbers of one run on the page. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kit.report import charts
from kit.report.curves import bands
from kit.report.predictions import Predictions, by_class, confusion, mistakes, successes, weakest
from kit.report.record import Run
from kit.report.times import Pace, paces
from kit.report.usage import Usage, usage_of
from kit.values import count, show_age

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
    """The source of a run's deployment; "" is unknown. The hashes are those of `kit history`."""

    image: str = ""
    by: str = ""
    inventory_hash: str = ""
    job_hash: str = ""
    code: str = ""


def number(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as text; None as a dash."""
    return NONE if value is None else f"{value:{form}}{unit}"


def share(value: float | None, digits: int = 2) -> str:
    """Return a share in percent."""
    return NONE if value is None else f"{value * 100:.{digits}f} %"


def view_of_run(run: Run, origin: Origin, predicted: Predictions | None, most: int) -> View:
    """Return the values of the template for one run; `most` of each list of pictures."""
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
    if usage := usage_of(run):
        yield from ((f"{n[0].upper()}{n[1:]}", word) for n, word in usage_words(usage).items())
    for rank in run.attempts[-1].ranks:
        gpu = f" {rank.gpu}" if rank.gpu else ""
        yield f"Rank {rank.rank}", f"{rank.host}, {rank.device}{gpu}"
    versions = facts.get("versions")
    for name, value in (versions if isinstance(versions, dict) else {}).items():
        yield str(name), str(value)


def usage_words(usage: Usage) -> dict[str, str]:
    """Return the usage of a run as text."""
    return {
        "owner": usage.owner,
        "priority": str(usage.priority),
        "waited": show_age(usage.waited_seconds),
        "GPU-hours": f"{usage.gpu_hours:,.2f}",
    }


def _date(run: str) -> str:
    """Return the time in a run's name."""
    match = re.match(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", run)
    return "{}-{}-{} {}:{}:{} UTC".format(*match.groups()) if match else ""


def _words(facts: Mapping[str, Any], key: str, form: str) -> str:
    value = facts.get(key)
    return form.format(value) if isinstance(value, int | float) else ""
