"""The prediction of a job's speed, as `kit plan` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.bench.findings import show_bits
from kit.commands.tables import table
from kit.plan.predict import GOOD, Prediction, WayForecast
from kit.values import count, show_seconds

if TYPE_CHECKING:
    from rich.console import Console


def show_prediction(screen: Console, prediction: Prediction) -> None:
    """Print the speed on one to all hosts for each way of exchange, and the conclusions."""
    steps = ", ".join(f"{show_seconds(each.seconds)} on {each.gpu}" for each in prediction.steps)
    links = "measured links" if prediction.measured_links else "declared links (kit bench measures)"
    screen.print(f"  predicted   from a step of {steps}, and {links}")
    rows = table(
        "hosts", "ranks", "step", "of it exchange", "images/s", "speed-up", "efficiency", "added",
        right=("hosts", "ranks", "step", "of it exchange", "images/s", "speed-up", "efficiency"),
    )  # fmt: skip
    names: tuple[str, ...] = ()
    for each in prediction.forecasts:
        added = each.hosts[len(names) :]
        names = each.hosts
        rows.add_row(
            f"{len(each.hosts):,}",
            f"{each.ranks:,}",
            show_seconds(each.step),
            show_seconds(each.exchange),
            f"{each.images_per_second:,.0f}",
            f"{each.speed_up:.2f}",
            f"{each.efficiency:.0%}",
            added[0] if len(added) == 1 else f"{added[0]} … {added[-1]}",
        )
    screen.print(rows)
    for line in _lines(prediction):
        screen.print(f"  {line}")


def _lines(prediction: Prediction) -> list[str]:
    most = len(prediction.forecasts[-1].hosts)
    lines = []
    if prediction.ways:
        ways = ", ".join(_way(way) for way in prediction.ways)
        lines.append(f"ways        {count(most, 'host')}: {ways}")
    if most > 1:
        lines.append(f"worth it    {_worth(prediction, most)}")
    if better := _better(prediction):
        lines.append(f"better      {better}")
    if prediction.better_without:
        gpus, factor = prediction.better_without
        lines.append(
            f"slow GPU    without {gpus} the job is {factor:.2f} times as fast; `use: none`, or "
            "`balance: auto`"
        )
    return lines


def _way(way: WayForecast) -> str:
    return f"{_name(way)} {way.images_per_second:,.0f} images/s ({way.efficiency:.0%})"


def _name(way: WayForecast) -> str:
    name = "every step" if way.mode == "every_step" else f"{way.mode} every {way.every_steps}"
    name += "" if way.compression == "none" else f" in {way.compression}"
    return name + (" overlapped" if way.overlap else "")


def _worth(prediction: Prediction, most: int) -> str:
    if prediction.worth == most:
        return f"yes, all {count(most, 'host')}"
    if prediction.worth == 1:
        return "no: a second host adds less than half of its own speed"
    added = next(
        len(each.hosts) for each in prediction.forecasts if len(each.hosts) > prediction.worth
    )
    more = f"up to {prediction.worth} hosts"
    if added == prediction.worth + 1:
        return f"{more}; host {added} adds less than half of its own speed"
    return f"{more}; those up to {added} bring less than half of their own speed"


def _better(prediction: Prediction) -> str:
    """Return the changes that would give all hosts a good efficiency."""
    if prediction.forecasts[-1].efficiency >= GOOD:
        return ""
    ways = [way for way in prediction.ways if way.efficiency >= GOOD]
    changes = []
    if prediction.wanted_speed:
        changes.append(f"links of {show_bits(prediction.wanted_speed)}")
    if prediction.wanted_batch:
        changes.append(f"batch_size: {prediction.wanted_batch}")
    if ways:
        changes.append(_name(ways[0]))
    return f"{GOOD:.0%} with {', or '.join(changes)}" if changes else ""
