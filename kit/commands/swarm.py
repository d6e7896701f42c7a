"""`kit swarm up` and `kit swarm down`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from kit.commands.options import with_paths
from kit.commands.tables import show_steps
from kit.docker import Docker, on_each
from kit.engine import Step
from kit.errors import InputError, KitError
from kit.model import EngineName, Host
from kit.plan.work import Plan
from kit.project import Paths, load_plan, rendered_tree
from kit.render import file_version
from kit.swarm.carry import Carrier
from kit.swarm.members import PLATFORM, managers, steps_down, steps_up, warnings
from kit.swarm.registers import history
from kit.swarm.seen import Cluster, Member, see_cluster, see_member


@click.group("swarm", short_help="Make the hosts one Swarm, or undo that.")
def command() -> None:
    """Make the hosts of the inventory one Swarm, or undo that."""


def _with_consent(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--yes", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Show the steps and do nothing.")(function)


@command.command("up")
@with_paths
@_with_consent
def up(paths: Paths, *, yes: bool, dry_run: bool) -> int:
    """Make the hosts one Swarm: managers, workers, labels, network.

    What is there already stays as it is.
    """
    plan = _plan(paths)
    root = rendered_tree(plan, paths)
    members = _members(plan.hosts)
    cluster, manager = _cluster(plan, members)
    file = root / PLATFORM
    platform = file_version(file.read_text(encoding="utf-8")) if file.exists() else None
    steps = steps_up(plan, members, cluster, platform)
    for text in warnings(plan, members, str(root)):
        click.echo(f"note: {text}", err=True)
    return _carry(
        Carrier(plan.cluster, manager, Docker.of(manager), root, click.echo),
        steps,
        yes=yes,
        dry_run=dry_run,
    )


@command.command("down")
@with_paths
@_with_consent
def down(paths: Paths, *, yes: bool, dry_run: bool) -> int:
    """Undo `kit swarm up`: only what it has made goes."""
    plan = _plan(paths)
    root = paths.tree(plan.cluster)
    members = _members(plan.hosts)
    cluster, manager = _cluster(plan, members)
    carrier = Carrier(plan.cluster, manager, Docker.of(manager), root, click.echo)
    steps: list[Step] = []
    if cluster is not None:
        remembered = len(history(carrier.manager))
        steps = steps_down(plan, members, cluster, remembered)
    return _carry(carrier, steps, yes=yes, dry_run=dry_run)


def _plan(paths: Paths) -> Plan:
    plan = load_plan(paths)
    if plan.engine is not EngineName.SWARM:
        raise InputError(
            f"{plan.file} says `engine: {plan.engine}`", "write `engine: swarm`, then `kit render`"
        )
    return plan


def _members(hosts: Sequence[Host]) -> dict[str, Member]:
    """Ask all hosts.

    Raises:
        KitError: Some cannot be reached.
    """
    found = on_each(hosts, see_member)
    silent = [str(result) for result in found.values() if isinstance(result, KitError)]
    if silent:
        raise KitError("\n".join(silent))
    return {name: result for name, result in found.items() if isinstance(result, Member)}


def _cluster(plan: Plan, members: Mapping[str, Member]) -> tuple[Cluster | None, Host]:
    """Return the Swarm as it is, and the manager to work with: the first that is one already."""
    wanted = managers(plan)
    for host in (*wanted, *plan.hosts):
        if members[host.name].control:
            return see_cluster(Docker.of(host)), host
    return None, wanted[0]


def _carry(carrier: Carrier, steps: Sequence[Step], *, yes: bool, dry_run: bool) -> int:
    show_steps(steps)
    if dry_run or not steps:
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("nobody is here to say yes", "read the steps above, then add --yes")
        click.confirm("take these steps?", abort=True)
    carrier.take(steps)
    return 0
