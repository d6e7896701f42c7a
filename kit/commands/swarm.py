"""`kit swarm up` and `kit swarm down`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kit.commands.options import with_paths
from kit.commands.tables import show_steps
from kit.errors import InputError, KitError
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.paths import Paths
from kit.plan.work import Plan, managers_of
from kit.project import load_lowered
from kit.rendered import rendered_tree
from kit.runtime.steps import Step
from kit.secrets import new_key, read_secret
from kit.targets.lowered import Lowered, file_version
from kit.targets.swarm.execute import Executor
from kit.targets.swarm.members import steps_down, steps_up, unlisted_nodes, warnings
from kit.targets.swarm.monitoring import MONITORING
from kit.targets.swarm.names import key_name, monitoring_secret
from kit.targets.swarm.observe import observe_cluster, observe_member
from kit.targets.swarm.platform import PLATFORM
from kit.targets.swarm.registers import history
from kit.targets.swarm.state import Cluster, Member
from kit.targets.swarm.steps import MakeSecret


@click.group("swarm", short_help="Make the hosts one Swarm, or undo that.")
def command() -> None:
    """Make the hosts of the inventory one Swarm, or undo that."""


def _with_confirmation(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--yes", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Only show the steps.")(function)


@command.command("up")
@with_paths
@_with_confirmation
def up(paths: Paths, *, yes: bool, dry_run: bool) -> int:
    """Make the hosts one Swarm: managers, workers, labels, network.

    It changes only what differs from the inventory.
    """
    lowered = _lowered(paths)
    plan, root = lowered.plan, rendered_tree(lowered, paths)
    members = _members(plan.hosts)
    cluster, manager = _cluster(plan, members)
    versions = (_version(root / file) for file in (PLATFORM, MONITORING))
    steps = steps_up(lowered, members, cluster, *versions)
    for text in warnings(plan, members, cluster, str(root)):
        click.echo(f"note: {text}", err=True)
    secrets = _secrets(plan, [step.name for step in steps if isinstance(step, MakeSecret)])
    executor = Executor(plan.cluster, manager, Docker.of(manager), root, secrets)
    return _execute(executor, steps, yes=yes, dry_run=dry_run)


def _version(file: Path) -> str | None:
    return file_version(file.read_text(encoding="utf-8")) if file.exists() else None


def _secrets(plan: Plan, names: Sequence[str]) -> dict[str, str]:
    """Return the values of new secrets by their names in Swarm: the key, Grafana's password.

    Raises:
        InputError: Grafana's password is not set.
    """
    secrets = {key_name(plan.cluster): new_key()}
    password = plan.monitoring.password if plan.monitoring else None
    if password and (name := monitoring_secret(plan.cluster, password)) in names:
        secrets[name] = read_secret("Grafana", password)
    return secrets


@command.command("down")
@with_paths
@_with_confirmation
def down(paths: Paths, *, yes: bool, dry_run: bool) -> int:
    """Undo `kit swarm up`: remove what it has made, and nothing else."""
    plan = _lowered(paths).plan
    members = _members(plan.hosts)
    cluster, manager = _cluster(plan, members)
    root = paths.tree(plan.cluster)
    executor = Executor(plan.cluster, manager, Docker.of(manager), root)
    steps: list[Step] = []
    if cluster is not None:
        remembered = len(history(executor.manager))
        steps = steps_down(plan, members, cluster, remembered)
        for node in unlisted_nodes(members, cluster):
            where = f"{node.name} stays in the Swarm, as the inventory does not name it"
            click.echo(f"note: {where}; on it: docker swarm leave --force", err=True)
    return _execute(executor, steps, yes=yes, dry_run=dry_run)


def _lowered(paths: Paths) -> Lowered:
    lowered = load_lowered(paths)
    if not lowered.managers:
        raise InputError(
            f"{lowered.plan.file} says `engine: {lowered.engine}`",
            "write `engine: swarm`, then `kit render`",
        )
    return lowered


def _members(hosts: Sequence[Host]) -> dict[str, Member]:
    """Query all hosts.

    Raises:
        KitError: Some hosts cannot be reached.
    """
    answers = on_each(hosts, observe_member)
    silent = [str(result) for result in answers.values() if isinstance(result, KitError)]
    if silent:
        raise KitError("\n".join(silent))
    return {name: result for name, result in answers.items() if isinstance(result, Member)}


def _cluster(plan: Plan, members: Mapping[str, Member]) -> tuple[Cluster | None, Host]:
    """Return the state of the Swarm, and the manager to use: preferably one that exists."""
    wanted = managers_of(plan.hosts)
    for host in (*wanted, *plan.hosts):
        if members[host.name].control:
            return observe_cluster(Docker.of(host)), host
    return None, wanted[0]


def _execute(executor: Executor, steps: Sequence[Step], *, yes: bool, dry_run: bool) -> int:
    show_steps(steps)
    if dry_run or not steps:
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                "without a terminal kit cannot ask for confirmation",
                "read the steps above, then add --yes",
            )
        click.confirm("execute these steps?", abort=True)
    executor.execute_all(steps, click.echo)
    return 0
