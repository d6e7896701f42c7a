"""The format of all tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from kit.runtime.steps import Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(*, stderr: bool = False) -> Console:
    """Return the console for tables. Output to a file or a pipe is not wrapped."""
    from rich.console import Console

    terminal = Console(highlight=False, soft_wrap=True, markup=False, stderr=stderr)
    if not terminal.is_terminal:
        terminal.width = 200
    return terminal


def show_steps(steps: Sequence[Step]) -> None:
    """Print steps with host and cause."""
    if not steps:
        click.echo("nothing to do: everything is up to date")
        return
    rows = table("where", "step", "because")
    for step in steps:
        rows.add_row(step.where, step.what, step.cause)
    console().print(rows)


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table; `right` names the right-aligned columns."""
    from rich import box
    from rich.table import Table

    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        rows.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return rows
