"""`kit render`."""

from __future__ import annotations

from pathlib import Path

import click

from kit import tree
from kit.commands.options import with_paths
from kit.errors import InputError
from kit.paths import Paths
from kit.plan.notes import lock_notes
from kit.project import load_lowered
from kit.rendered import render_lowered
from kit.values import count


@click.command("render", short_help="Write the Compose or Swarm files.")
@with_paths
@click.option(
    "--check", is_flag=True, help="Write nothing; show a diff and exit 1 if files differ."
)
@click.option("--diff", is_flag=True, help="Write nothing; show what a render would change.")
def command(paths: Paths, check: bool, diff: bool) -> int:
    """Write the Compose or Swarm files.

    Each file is replaced atomically. kit deletes only files that it has made.
    """
    lowered = load_lowered(paths)
    root = paths.tree(lowered.cluster)
    rendered = render_lowered(lowered, paths)
    if check or diff:
        return _show(root, tree.changes(root, rendered), failing=check)
    done = tree.write(root, rendered)
    # The manifest is written too, but is not a file of the tree.
    done = [change for change in done if change.path != tree.MANIFEST]
    changed = sum(change.after is not None for change in done)
    click.echo(
        f"{root}: {count(len(rendered), 'file')} for engine {lowered.engine}; "
        f"{changed} written, {len(done) - changed} deleted"
    )
    for note in lock_notes(lowered.unlocked):
        click.echo(f"note  {note}")
    return 0


def _show(root: Path, changes: list[tree.Change], *, failing: bool) -> int:
    for change in changes:
        click.echo(change.diff(root.as_posix().lstrip("/")), nl=False)
    if not (failing and changes):
        return 0
    advice = "run `kit render` and review the change"
    try:
        tree.refuse_foreign(root, changes)
    except InputError as error:
        advice = str(error)
    click.echo(
        f"kit: {root} differs from the inventory and the jobs in "
        f"{count(len(changes), 'file')}\n{advice}",
        err=True,
    )
    return 1
