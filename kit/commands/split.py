"""`kit split`: move GPUs between training and inference."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kit import files, tree
from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.errors import InputError
from kit.memory import collection_paused
from kit.model import Gpu, Use
from kit.paths import Paths
from kit.project import load_project, lowered_of
from kit.split.compare import Holding, Move, State, holdings, made_idle, reverse, rows, state
from kit.split.propose import Proposal, propose
from kit.split.sections import Slot, count_of
from kit.split.select import Selectors
from kit.values import count, show_size

LONGEST_ID = 12
"""Characters of a UUID that are shown: enough to identify a GPU, and to select it."""
MOST_LISTED = 200
"""With more GPUs, similar ones share a row."""
MOST_ROWS = 20
"""With more moves, only the first are shown."""
MOST_UNDONE = 8
"""With more selectors, the undo command is too long to copy."""


@click.command("split", short_help="Move GPUs between training and inference.")
@with_paths
@click.option(
    "--infer",
    multiple=True,
    metavar="SEL",
    help="GPUs for inference; or their number: kit takes the weakest.",
)
@click.option("--train", multiple=True, metavar="SEL", help="GPUs for training.")
@click.option("--spare", multiple=True, metavar="SEL", help="GPUs that stand in for a lost host's.")
@click.option("--none", "keep_away", multiple=True, metavar="SEL", help="GPUs for neither.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would change.")
@click.option("--all", "every", is_flag=True, help="Show each GPU in its own row.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: Paths,
    infer: tuple[str, ...],
    train: tuple[str, ...],
    spare: tuple[str, ...],
    keep_away: tuple[str, ...],
    *,
    yes: bool,
    dry_run: bool,
    every: bool,
    as_json: bool,
) -> int:
    """Move GPUs between training and inference, by `use:` in the inventory.

    Without options it shows which workload has which GPU.

    SEL is HOST, HOST:WHICH, or WHICH for all hosts. WHICH is an index of the host's list (pc1:0,
    pc1:0-1,3), a UUID or its beginning, a model or a part of its name, or `all`. Hosts of a range
    move together ('gpu[001-064]:7'). `--infer 2` gives two GPUs in total to inference, `--infer 0`
    none. A spare or a GPU with `use: none` moves only if its index or UUID names it.
    """
    selectors = Selectors(infer, train, spare, keep_away)
    if selectors == Selectors():
        return _show(paths, every=every, as_json=as_json)
    if as_json and not (yes or dry_run):
        raise InputError(
            "--json cannot ask for confirmation", "add --yes, or --dry-run to see it first"
        )
    project = load_project(paths)
    text = _read_exactly(paths.inventory)
    with collection_paused():
        proposal = propose(project, paths.inventory, text, selectors)
    if not as_json:
        _show_proposal(paths, text, proposal, dry_run=dry_run)
    if proposal.moves and not dry_run:
        _confirm(yes=yes)
        files.replace_unchanged(paths.inventory, text, proposal.text)
    if as_json:
        click.echo(_document(paths, proposal, written=not dry_run))
    elif proposal.moves and not dry_run:
        click.echo(f"{paths.inventory}: {_gpus(proposal.moves)} moved")
        click.echo("now:  kit render && kit deploy   (or: make render deploy)")
        click.echo(f"undo: {_undo_text(paths, proposal)}")
    return 0


def _read_exactly(path: Path) -> str:
    """Read the file without newline conversion: `Path.read_text` would drop carriage returns."""
    return files.read_plain(path).decode("utf-8")


def _show(paths: Paths, *, every: bool, as_json: bool) -> int:
    project = load_project(paths)
    plan = lowered_of(project, project.inventory).plan
    held = holdings(project.inventory, plan)
    if as_json:
        document = {
            "inventory": str(paths.inventory),
            "gpus": [_slot(each.slot) | {"use": _use(each), "has": each.owners} for each in held],
            "now": _state(state(project.inventory, plan)),
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    listed = table("host", "GPU", "model", "memory", "id", "use", "has it", right=("GPU",))
    for group in rows_of(held, every=every):
        first, number = group[0], count_of(each.slot for each in group)
        listed.add_row(
            _hosts(first.slot) if len(group) == 1 else _alike(group),
            str(first.slot.position) if len(group) == 1 else f"{number:,} in all",
            *(_words(first.slot.gpu)[:2]),
            _words(first.slot.gpu)[2] if len(group) == 1 else "-",
            _use(first),
            ", ".join(first.owners) or "-",
        )
    console().print(listed)
    return 0


def rows_of(held: Sequence[Holding], *, every: bool) -> Iterable[Sequence[Holding]]:
    """Group GPUs that differ only by host, if there are many."""
    if every or len(held) <= MOST_LISTED:
        return [[each] for each in held]
    alike: dict[object, list[Holding]] = {}
    for each in held:
        gpu = each.slot.gpu
        alike.setdefault((gpu.model, gpu.memory, gpu.use, each.owners), []).append(each)
    return alike.values()


def _alike(group: Sequence[Holding]) -> str:
    hosts = {host: None for each in group for host in each.slot.hosts}
    first, last = next(iter(hosts)), next(reversed(hosts))
    return first if len(hosts) == 1 else f"{first} … {last} ({len(hosts):,})"


def _show_proposal(paths: Paths, text: str, proposal: Proposal, *, dry_run: bool) -> None:
    if not proposal.moves:
        click.echo("nothing to do: every GPU already has the requested use")
        return
    listed = table("host", "GPU", "model", "memory", "id", "use", right=("GPU",))
    for move in proposal.moves[:MOST_ROWS]:
        slot = move.slot
        use = f"{move.before} → {move.after}"
        listed.add_row(_hosts(slot), str(slot.position), *_words(slot.gpu), use)
    console().print(listed)
    if len(proposal.moves) > MOST_ROWS:
        click.echo(f" … and {len(proposal.moves) - MOST_ROWS} more")
    compared = table("", "", "before", "after")
    shown = ""
    for row in rows(proposal.before, proposal.after):
        compared.add_row("" if row.of == shown else row.of, row.what, row.before, row.after)
        shown = row.of
    console().print(compared)
    for gap in proposal.gaps:
        click.echo(str(gap))
    if dry_run:
        name = paths.inventory.as_posix().lstrip("/")
        click.echo(tree.unified_diff(name, text, proposal.text), nl=False)
        click.echo(f"\ncommand to undo it: {_undo_text(paths, proposal)}")


def _confirm(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "without a terminal kit cannot ask for confirmation",
            "read the tables above, then add --yes",
        )
    click.confirm("make this split?", abort=True)


def _undo(paths: Paths, proposal: Proposal) -> str | None:
    """Return the command that undoes a split, or None if kit would reject it."""
    if proposal.before.jobs is None:  # The earlier state was invalid and would be rejected.
        return None
    back = reverse(proposal.moves)
    if made_idle(proposal.after, proposal.before):
        if dict(proposal.before.uses)[Use.INFERENCE]:
            return None
        # The number moves GPUs back to training; the other GPUs are named.
        others = [m for m in proposal.moves if {m.before, m.after} != {Use.TRAINING, Use.INFERENCE}]
        back = (("--infer", "0"), *reverse(others))
    words = ["kit", "split"]
    if paths.inventory != Path("inventory.yaml"):
        words += ["-i", str(paths.inventory)]
    if paths.jobs is not None:
        words += ["--jobs", str(paths.jobs)]
    for option, selector in back:
        words += [option, selector]
    return shlex.join(words)


def _undo_text(paths: Paths, proposal: Proposal) -> str:
    """Return the command that the user can copy to undo a split."""
    undo = _undo(paths, proposal)
    if undo and len(reverse(proposal.moves)) <= MOST_UNDONE:
        return undo
    return f"git checkout -- {shlex.quote(str(paths.inventory))}   (if it was committed before)"


def _hosts(slot: Slot) -> str:
    first, last, number = slot.hosts[0], slot.hosts[-1], len(slot.hosts)
    return first if number == 1 else f"{first} … {last} ({number})"


def _words(gpu: Gpu) -> tuple[str, str, str]:
    short = gpu.id if len(gpu.id) <= LONGEST_ID else f"{gpu.id[:LONGEST_ID]}…"
    memory = "-" if gpu.memory is None else show_size(gpu.memory)
    return gpu.model or "-", memory, short if gpu.known else "-"


def _use(holding: Holding) -> str:
    return str(holding.slot.gpu.use)


def _gpus(done: Sequence[Move]) -> str:
    return count(count_of(move.slot for move in done), "GPU")


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "section": slot.section,
        "hosts": slot.hosts,
        "gpu": slot.position,
        "id": slot.gpu.id,
        "model": slot.gpu.model,
        "memory": slot.gpu.memory,
    }


def _state(counted: State) -> dict[str, Any]:
    document = asdict(counted)
    return {**document, "uses": dict(counted.uses)}


def _document(paths: Paths, proposal: Proposal, *, written: bool) -> str:
    changed = [
        _slot(move.slot) | {"before": move.before, "after": move.after} for move in proposal.moves
    ]
    document = {
        "inventory": str(paths.inventory),
        "changed": changed,
        "before": _state(proposal.before),
        "after": _state(proposal.after),
        "gaps": [asdict(gap) for gap in proposal.gaps],
        "written": written and bool(changed),
        "undo": _undo(paths, proposal) if changed else None,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
