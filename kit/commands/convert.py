"""`kit convert`: convert an inventory for another engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from pydantic import ValidationError

from kit import files, tree
from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.config.kubernetes import KubernetesSection, to_kubernetes
from kit.config.load import Project
from kit.convert.edit import changes_only, edited
from kit.errors import INVENTORY, Fault, FaultsError, InputError, Loc, Problem, ProblemsError
from kit.model import Kubernetes
from kit.paths import Paths
from kit.plan.work import Plan
from kit.project import load_project, lowered_of, lowered_with
from kit.targets.kubernetes.convert import (
    Note,
    Verdict,
    converted,
    notes,
    numbered,
    section_of,
)
from kit.values import count
from kit.yamlfile import Document, parse

Row = tuple[Problem, Verdict, str]


@click.command("convert", short_help="Move a cluster's files to Kubernetes.")
@with_paths
@click.option("--to", type=click.Choice(["kubernetes"]), required=True, help="The new engine.")
@click.option("--namespace", required=True, metavar="NAME", help="Namespace of all objects.")
@click.option("--context", metavar="NAME", help="Context of kubectl.  [default: the current one]")
@click.option("--yes", is_flag=True, help="Write the inventory without a question.")
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would change.")
def command(
    paths: Paths, to: str, namespace: str, context: str | None, *, yes: bool, dry_run: bool
) -> int:
    """Show which values are kept, change or are not supported, and edit the inventory.

    Values that are not supported stay in the files: `kit plan` names them until you remove them.
    Jobs and servers stay unchanged.
    """
    project = load_project(paths)
    if project.inventory.engine == to:
        raise InputError(f"{paths.inventory} is for {to} already", "see it with `kit plan`")
    plan = lowered_of(project, project.inventory).plan
    settings = _settings(namespace, context)
    rows = _rows(project, plan, settings)
    _show(rows)
    before = files.read_plain(paths.inventory).decode("utf-8")
    document = project.sources.documents[INVENTORY]
    by_index = numbered(plan)
    after = edited(before, document, to, section_of(settings), by_index)
    _verify(paths.inventory, after, document, to, by_index)
    click.echo(tree.unified_diff(paths.inventory.as_posix().lstrip("/"), before, after), nl=False)
    if dry_run:
        return 0
    files.replace_unchanged(paths.inventory, before, _confirmed(after, yes=yes))
    click.echo(f"{paths.inventory}: written; now: {_next(rows, paths.inventory)}")
    return 0


def _verify(file: Path, text: str, before: Document, to: str, by_index: Sequence[Loc]) -> None:
    """Check that the edited text changes exactly what a conversion changes."""
    try:
        if changes_only(before.value, parse(text, str(file)).value, to, by_index):
            return
        reason = "other values would change, too"
    except ProblemsError as error:
        reason = f"the result would be invalid:\n{error}"
    raise InputError(
        f"{file}: the conversion cannot be written into this text: {reason}",
        f"nothing was written; begin the file with `engine: {to}` and a `kubernetes:` section "
        "yourself, or write the inventory more plainly: a key on each line, without anchors",
    )


def _settings(namespace: str, context: str | None) -> Kubernetes:
    try:
        settings = to_kubernetes(KubernetesSection(namespace=namespace, context=context))
    except ValidationError as error:
        (first, *_) = error.errors()
        raise InputError(f"--{first['loc'][0]}: {first['msg']}") from None
    assert settings is not None
    return settings


def _rows(project: Project, plan: Plan, settings: Kubernetes) -> list[Row]:
    rows = [_row(project, note) for note in notes(plan, settings)]
    try:
        lowered_with(project, converted(project.inventory, plan, settings))
    except FaultsError as error:
        found = project.sources.problems(error.faults).problems
        rows += [(each, Verdict.CANNOT, f"{each.what}; {each.fix}") for each in found]
    return sorted(rows, key=lambda row: (row[0].file, row[0].line))


def _row(project: Project, note: Note) -> Row:
    fault = Fault(note.source, note.loc, "", "")
    (problem,) = project.sources.problems([fault]).problems
    return problem, note.verdict, note.what


def _show(rows: list[Row]) -> None:
    listed = table("where", "key", "", "in Kubernetes")
    for problem, verdict, what in rows:
        listed.add_row(f"{problem.file}:{problem.line}", problem.path, verdict, what)
    console().print(listed)


def _confirmed(text: str, *, yes: bool) -> str:
    if not yes:
        if not sys.stdin.isatty():
            what = "without a terminal kit cannot ask for confirmation"
            raise InputError(what, "read the table above, then add --yes")
        click.confirm("write it?", abort=True)
    return text


def _next(rows: list[Row], inventory: Path) -> str:
    left = sum(verdict is Verdict.CANNOT for _, verdict, _ in rows)
    if left:
        return f"remove the values that are not supported ({count(left, 'line')}), then `kit plan`"
    given = "" if inventory == Path("inventory.yaml") else f" -i {inventory}"
    return f"`kit render{given} --diff`"
