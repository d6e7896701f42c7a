"""The JSON document of a report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from kit.report.predictions import by_class, confusion, disagreement, predictions
from kit.report.record import Run
from kit.report.run_view import Origin
from kit.report.times import compare, division, paces
from kit.report.usage import usage_of


def document(runs: Sequence[Run], origins: Sequence[Origin]) -> dict[str, Any]:
    """Return runs and their differences as JSON values. Times are in seconds, losses in nats."""
    compared = zip(compare(runs), origins, strict=True)
    return {
        "runs": [
            {
                "job": each.run.job,
                "run": each.run.id,
                "state": each.run.state,
                "began": each.run.began,
                "ended": each.run.ended,
                "seconds": each.run.seconds,
                **{
                    each_field.name: getattr(each, each_field.name)
                    for each_field in fields(each)
                    if each_field.name != "run"
                },
                "time": division(each.run),
                "epochs_done": [asdict(epoch) for epoch in each.run.epochs],
                "attempts": [
                    {
                        "began": attempt.time,
                        "step": attempt.step,
                        "world_size": attempt.world_size,
                        "hosts": list(attempt.hosts),
                        "interrupted": attempt.reason or None,
                    }
                    for attempt in each.run.attempts
                ],
                "events": [asdict(event) for event in each.run.events],
                "ranks": _ranks(each.run),
                "predictions": _predictions(each.run),
                "classes": [asdict(figures) for figures in by_class(each.run)],
                "origin": asdict(origin),
                "queue": asdict(usage) if (usage := usage_of(each.run)) else None,
                "facts": dict(each.run.facts),
            }
            for each, origin in compared
        ],
        "disagreements": [
            {
                "first": pair.first.title,
                "second": pair.second.title,
                "samples": pair.samples,
                "different": pair.number,
                "only_first_right": pair.only_first,
                "only_second_right": pair.only_second,
            }
            for second in runs[1:]
            if (pair := disagreement(runs[0], second, 0)) is not None
        ],
    }


def _ranks(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "rank": pace.rank.rank,
            "host": pace.rank.host,
            "device": pace.rank.device,
            "gpu": pace.rank.gpu,
            "step_median": pace.median,
            "step_slowest": pace.slowest,
            "work": pace.work,
            "exchange": pace.exchange,
            "factor": pace.factor,
            "slow": pace.slow,
        }
        for pace in paces(run)
    ]


def _predictions(run: Run) -> dict[str, Any] | None:
    predicted = predictions(run)
    if predicted is None:
        return None
    return {
        "samples": len(predicted.truth),
        "correct": predicted.correct,
        "confusion": [
            {"class": predicted.label(true), "predicted": predicted.label(other), "samples": number}
            for (true, other), number in sorted(confusion(predicted).items())
        ],
    }
