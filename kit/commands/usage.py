"""`kit usage`: the GPU-hours that people and jobs of the queue have had."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import click

from kit.commands.options import with_paths
from kit.commands.submit import queue_of
from kit.commands.tables import console, table
from kit.commands.targets import target_of, with_engine
from kit.errors import InputError
from kit.paths import Paths

Hours = Mapping[str, Mapping[str, float]]
"""GPU-hours of each person's jobs."""


@click.command("usage", short_help="Show the GPU-hours of people and jobs.")
@with_paths
@with_engine
@click.option(
    "--by",
    type=click.Choice(["owner", "job"]),
    default="owner",
    show_default=True,
    help="Add up the hours of each owner or job.",
)
@click.option("--month", metavar="YYYY-MM", help="A month in UTC; by default the present one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: Paths, engine: str | None, by: str, month: str | None, *, as_json: bool) -> None:
    """Show the GPU-hours of the queue's jobs in a month.

    The hours include the time in which a job loads or saves.
    """
    wanted = month or f"{datetime.now(UTC):%Y-%m}"
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", wanted):
        raise InputError(f"--month: {wanted} is not a month", "write for example --month 2026-11")
    months = queue_of(target_of(paths, engine)).spent().months
    rows = list(_rows(months.get(wanted, {}), by))
    if as_json:
        click.echo(json.dumps({"month": wanted, by: dict(rows)}, indent=2))
    elif not rows:
        known = f": there is {', '.join(sorted(months))}" if months else ""
        click.echo(f"no job of the queue ran in {wanted}{known}")
    else:
        lines = table(by, "GPU-hours", right={"GPU-hours"})
        for name, hours in rows:
            lines.add_row(name, f"{hours:,.1f}")
        console().print(lines)


def _rows(people: Hours, by: str) -> Iterator[tuple[str, float]]:
    """Yield the GPU-hours of each owner or job, the most first."""
    hours = defaultdict[str, float](float)
    for owner, jobs in people.items():
        for job, each in jobs.items():
            hours[owner if by == "owner" else job] += each
    yield from sorted(hours.items(), key=lambda row: (-row[1], row[0]))
