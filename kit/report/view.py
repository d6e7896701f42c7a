"""The words and numbers of the page, from runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.report import charts
from kit.report.curves import AXES, Axis, of_epochs, training_losses
from kit.report.predictions import Disagreement, by_class, disagreement, predictions
from kit.report.record import Run, named
from kit.report.run_view import Origin, View, number, share, view_of_run
from kit.report.times import KINDS, Comparison, compare, division, speed, speed_unit


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
            view_of_run(run, origin, predicted, most_pictures)
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
    """Return the names of the metrics of a text, or of a custom model."""
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
