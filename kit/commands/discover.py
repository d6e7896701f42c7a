"""`kit discover`: ask the hosts for their hardware and software, and update the inventory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kit import files, tree, values
from kit.commands.nodes import show_nodes
from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.config.load import Sources, read_inventory
from kit.discover.ask import Login, ask
from kit.discover.cable import shared_fast_network
from kit.discover.facts import DiscoveredHost, HostFacts
from kit.discover.match import HostToAsk, logins_of, named
from kit.discover.notes import notes_of
from kit.discover.update import Update, engine_for, new_inventory, updated
from kit.errors import InputError, KitError
from kit.model import Inventory
from kit.paths import Paths
from kit.values import WrongValueError, show_speed


@click.command("discover", short_help="Ask the hosts for their GPUs and more; write the inventory.")
@with_paths
@click.argument("logins", nargs=-1, metavar="[LOGIN]...")
@click.option("--cluster", default="pool", show_default=True, help="Name of a new inventory.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would change.")
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON; write nothing.")
def command(
    paths: Paths,
    logins: tuple[str, ...],
    cluster: str,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Query hosts over SSH for hardware and software, and write or update the inventory.

    LOGIN is USER@HOST or HOST, as for ssh; by default, all hosts of the inventory. The command
    installs and changes nothing on the hosts. It shows the difference and asks before it writes the
    inventory; comments, order and settings such as `use:` and `roles:` stay.

    With `engine: kubernetes`, it reads the nodes with their GPU labels, prints what the inventory
    lacks, and writes nothing.
    """
    text = _text(paths.inventory)
    inventory = read_inventory(text, paths.inventory, Sources()) if text else None
    if inventory and inventory.kubernetes and not logins:
        show_nodes(inventory, inventory.kubernetes, as_json=as_json)
        return 0
    asked = logins_of(logins, inventory)
    answers = ask([Login(each.name, each.ssh) for each in asked])
    facts = [(each, answers[Login(each.name, each.ssh)]) for each in asked]
    failed = [answer for _, answer in facts if isinstance(answer, KitError)]
    answered = [(each, answer) for each, answer in facts if isinstance(answer, HostFacts)]
    if as_json:
        click.echo(_document(answered, failed))
        return 1 if failed else 0
    show_hosts(answered)
    written = inventory.hosts if inventory else ()
    fast = shared_fast_network([facts for _, facts in answered])
    hosts, refused = named(answered, fast, written)
    failed += refused
    for error in failed:
        click.echo(f"kit: {error}", err=True)
    if hosts:
        update = _update(paths, text, inventory, cluster, hosts)
        for note in (*notes_of(hosts), *update.notes):
            click.echo(f"note: {note}")
        _offer(paths.inventory, text, update.text, yes=yes, dry_run=dry_run)
    return 1 if failed else 0


def _text(path: Path) -> str:
    """Return the text of the file, or "" if there is no file."""
    try:
        return files.read_plain(path, largest=files.LARGEST).decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not UTF-8 text", "save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _update(
    paths: Paths,
    text: str,
    inventory: Inventory | None,
    cluster: str,
    hosts: Sequence[DiscoveredHost],
) -> Update:
    if inventory:
        update = updated(text, str(paths.inventory), hosts)
    else:
        update = new_inventory(_label(cluster), engine_for(hosts), hosts)
    read_inventory(update.text, paths.inventory, Sources())
    return update


def _label(cluster: str) -> str:
    try:
        return values.dns_label(cluster)
    except WrongValueError as error:
        raise InputError(f"--cluster: {error.what}", error.fix) from None


def _offer(path: Path, before: str, after: str, *, yes: bool, dry_run: bool) -> None:
    """Show the difference, ask for confirmation, and write the file."""
    if after == before:
        click.echo(f"{path}: nothing to change")
        return
    click.echo(tree.unified_diff(path.as_posix().lstrip("/"), before, after), nl=False)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                "without a terminal kit cannot ask for confirmation",
                "read the difference, then add --yes",
            )
        click.confirm(f"write {path}?", abort=True)
    files.replace_unchanged(path, before, after)
    click.echo(f"{path}: written; next: kit plan")


def show_hosts(answered: Sequence[tuple[HostToAsk, HostFacts]]) -> None:
    """Print a table of hosts that have answered."""
    if not answered:
        return
    rows = table("host", "GPUs", "driver, CUDA", "Docker", "CPU, memory", "free", "network")
    for each, facts in answered:
        rows.add_row(each.name, *_cells(facts))
    console().print(rows)


def _cells(facts: HostFacts) -> tuple[str, ...]:
    models = [f"{gpu.model} {_gib(gpu.memory)}".strip() for gpu in facts.gpus]
    gpus = ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))
    if facts.unlisted:
        gpus = f"{gpus or 'none'}, {len(facts.unlisted)} not listed"
    free = max((disk.free for disk in facts.disks), default=0)
    interface = facts.interface_of(facts.reached)
    speed = show_speed(interface.speed) if interface and interface.speed else "?"
    return (
        gpus or facts.gpu_fault or "none",
        ", ".join(filter(None, (facts.driver, facts.cuda))) or "-",
        facts.docker.stand_in or facts.docker.fault or facts.docker.version,
        f"{facts.cores}, {_gib(facts.memory)}",
        _gib(free),
        f"{interface.name} {speed}" if interface else "-",
    )


def _gib(number: int | None) -> str:
    return f"{number / 2**30:.0f} GiB" if number else ""


def _document(answered: Sequence[tuple[HostToAsk, HostFacts]], failed: Sequence[KitError]) -> str:
    hosts: list[dict[str, Any]] = [
        {"host": each.name, "ssh": each.ssh, **asdict(facts)} for each, facts in answered
    ]
    document = {"hosts": hosts, "failed": [error.message for error in failed]}
    return json.dumps(document, indent=2, ensure_ascii=False)
