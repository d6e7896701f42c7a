"""`kit host prepare`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from kit import tree
from kit.commands.options import with_paths
from kit.commands.targets import target_for
from kit.errors import InputError, KitError
from kit.hosts.docker import Docker
from kit.model import EngineName, Host
from kit.paths import Paths
from kit.plan.work import managers_of
from kit.prepare.order import Wave, waves
from kit.prepare.remote import Task, packages_in
from kit.prepare.report import Report, Status
from kit.prepare.run import Preparation, without_password
from kit.project import load_lowered, render_lowered
from kit.render import Tree
from kit.runtime.status import ENDED, JobStatus, State
from kit.targets.lowered import MERGE_FILE, STEPS_FILE, Lowered
from kit.targets.swarm.observe import first_answer
from kit.values import count
from trainer.contract.words import nearest

Found = Mapping[str, Report | KitError]
SETTLED = 600.0
"""The most seconds until jobs run again after a restart: the first step may compile a model."""


@click.group("host", short_help="Prepare the hosts for GPU containers.")
def command() -> None:
    """Prepare the hosts of the inventory."""


@command.command("prepare")
@with_paths
@click.argument("hosts", nargs=-1)
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if a host would be changed.")
@click.option("--run", is_flag=True, help="Show the changes, ask, and make them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--toolkit",
    default="",
    metavar="FOLDER|URL",
    help="NVIDIA's container toolkit from a folder of packages here, or from a mirror.",
)
@click.option("--install-docker", is_flag=True, help="Install Docker Engine where it is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON; change nothing.")
def prepare(
    paths: Paths,
    hosts: tuple[str, ...],
    toolkit: str,
    *,
    check: bool,
    run: bool,
    yes: bool,
    install_docker: bool,
    as_json: bool,
) -> int:
    """Prepare HOSTS for GPU containers: container toolkit, daemon.json, docker group, firewall.

    By default, all hosts of the inventory. The command renders hosts/<host>/prepare.sh and says
    what each script would change on its host. With --run it runs the scripts over SSH. If Docker
    must be restarted, it drains the node before and makes it active again.
    """
    if run and (check or as_json):
        raise InputError("--run changes the hosts, --check and --json do not", "give one of them")
    mirror = toolkit if "://" in toolkit else ""
    packages = packages_in(Path(toolkit)) if toolkit and not mirror else ()
    lowered = load_lowered(paths)
    chosen = _chosen(lowered, hosts)
    rendered = render_lowered(lowered, paths)
    root = paths.tree(lowered.cluster)
    if not (check or as_json) and (done := tree.write(root, rendered)):
        click.echo(f"{root}: {count(len(done), 'file')} written")
    task = Task(_own_files(rendered), mirror, packages, install_docker)
    preparation = Preparation(task, partial(_manager, lowered), click.echo)
    found = _look(preparation, chosen)
    if as_json:
        click.echo(json.dumps(_document(found), indent=2, ensure_ascii=False))
    else:
        _show(found)
    if run:
        return _run(preparation, lowered, chosen, found, paths, yes=yes)
    return _status(found, check=check, quiet=as_json)


def _chosen(lowered: Lowered, names: Sequence[str]) -> list[Host]:
    if lowered.engine is EngineName.LOCAL:
        raise InputError(
            f"{lowered.plan.file} says `engine: local`: this machine needs no preparation",
            "write `engine: swarm` or `engine: compose`",
        )
    known = {host.name: host for host in lowered.plan.hosts}
    for name in names:
        if name not in known:
            raise InputError(f"the inventory has no host {name}", nearest(name, known))
    return [known[name] for name in dict.fromkeys(names)] or list(lowered.plan.hosts)


def _own_files(rendered: Tree) -> Tree:
    own = (STEPS_FILE, MERGE_FILE)
    ends = ("/prepare.sh", "/daemon.json")
    return {name: text for name, text in rendered.items() if name in own or name.endswith(ends)}


def _manager(lowered: Lowered) -> Docker:
    return first_answer(managers_of(lowered.plan.hosts))[1]


def _look(preparation: Preparation, hosts: Sequence[Host]) -> Found:
    """Ask the hosts what would change, and the person for the passwords that sudo needs."""
    found = dict(preparation.look(hosts))
    needed = without_password(found)
    if needed and sys.stdin.isatty():
        before = ""
        for host in (host for host in hosts if host.name in needed):
            same = ", empty: the same" if before else ""
            text = f"password of {host.ssh} for sudo{same}"
            before = click.prompt(text, hide_input=True, default=before, show_default=False)
            preparation.passwords[host.name] = before
        found |= preparation.look([host for host in hosts if host.name in needed])
    return found


def _show(found: Found) -> None:
    for name, result in found.items():
        if isinstance(result, KitError):
            click.echo(f"kit: {result}", err=True)
            continue
        click.echo(f"{name}:")
        for line in result.lines:
            click.echo(f"  {line.kind:8} {line.text}" if line.kind else f"  {line.text}")


def _document(found: Found) -> dict[str, object]:
    reports = [each.document() for each in found.values() if isinstance(each, Report)]
    failed = [each.message for each in found.values() if isinstance(each, KitError)]
    return {"hosts": reports, "failed": failed}


def _status(found: Found, *, check: bool, quiet: bool) -> int:
    """Return the exit status of a command that changes no host."""
    reports = [each for each in found.values() if isinstance(each, Report)]
    if len(reports) < len(found):
        return 1
    if conflicts := _conflicts(found):
        if quiet:
            return 2
        raise _conflict(conflicts)
    changed = [each.host.name for each in reports if each.changes]
    if not quiet:
        told = f"{', '.join(changed)}: kit host prepare --run makes these changes"
        click.echo(told if changed else "nothing to change")
    return 1 if changed and (check or quiet) else 0


def _conflicts(found: Found) -> list[str]:
    reports = (each for each in found.values() if isinstance(each, Report))
    return [each.host.name for each in reports if each.status not in {Status.DONE, Status.FAILED}]


def _conflict(names: Sequence[str]) -> InputError:
    where = "each problem above" if len(names) > 1 else "the problem above"
    return InputError(
        f"{', '.join(names)}: cannot be prepared as it is; no host was changed",
        f"settle {where} there, or name only the other hosts",
    )


def _run(
    preparation: Preparation,
    lowered: Lowered,
    hosts: Sequence[Host],
    found: Found,
    paths: Paths,
    *,
    yes: bool,
) -> int:
    if conflicts := _conflicts(found):
        raise _conflict(conflicts)
    todo = [host for host in hosts if _changes(found[host.name])]
    lost = any(isinstance(each, KitError) for each in found.values())
    if not todo:
        if not lost:
            click.echo("nothing to change")
        return 1 if lost else 0
    jobs = _Jobs(lowered, paths, found)
    preparation.settle = jobs.settle
    order = _order(lowered, todo, found, alone=jobs.several_hosts)
    _announce(order, found)
    _confirm(todo, yes=yes)
    began = time.monotonic()
    done = preparation.change(todo)
    failed = [each for each in done.values() if isinstance(each, KitError) or each.problems]
    if failed:
        raise KitError(_told(failed), "kit host prepare --run continues: what is done stays done")
    waiting = {name for name, each in done.items() if _waits(each)}
    order = [tuple(host for host in wave if host.name in waiting) for wave in order]
    preparation.restart([wave for wave in order if wave])
    seconds = time.monotonic() - began
    click.echo(f"{count(len(todo), 'host')} prepared in {seconds:.0f} s")
    return 1 if lost else 0


def _changes(result: Report | KitError) -> bool:
    return isinstance(result, Report) and bool(result.changes)


def _waits(result: Report | KitError) -> bool:
    return isinstance(result, Report) and result.status == Status.WAITS


def _told(failed: Sequence[Report | KitError]) -> str:
    return "\n".join(
        each.message
        if isinstance(each, KitError)
        else f"{each.host.name}: {'; '.join(each.problems)}"
        for each in failed
    )


def _order(lowered: Lowered, todo: Sequence[Host], found: Found, *, alone: bool) -> list[Wave]:
    """Return the order of restarts; whether a host needs one may turn out only on the way."""
    managers = {host.name for host in managers_of(lowered.plan.hosts)}
    swarm = lowered.engine is EngineName.SWARM
    return waves(todo, managers if swarm and _formed(found) else (), alone=alone)


def _formed(found: Found) -> bool:
    """Return whether one of the hosts is in a Swarm already."""
    reports = (each for each in found.values() if isinstance(each, Report))
    return any(each.restart is not None and each.restart[1] for each in reports)


class _Jobs:
    """The workloads that run while hosts are prepared."""

    def __init__(self, lowered: Lowered, paths: Paths, found: Found) -> None:
        self._target = target_for(lowered.engine, lowered.cluster, paths.tree(lowered.cluster))
        # Without containers on a host that restarts, there is nothing to disturb.
        reports = (each for each in found.values() if isinstance(each, Report))
        busy = any(each.restart is not None and each.restart[0] for each in reports)
        self._before = self._running() if busy else {}

    @property
    def several_hosts(self) -> bool:
        """Whether one of them runs on several hosts."""
        return any(len(each.hosts) > 1 for each in self._before.values())

    def settle(self) -> None:
        """Wait until they run again as before: the next host may end the others' newest state.

        Raises:
            KitError: One does not.
        """
        if self._before:
            click.echo(f"wait until {', '.join(self._before)} runs again on all its hosts")
        deadline = time.monotonic() + SETTLED
        while waiting := [name for name in self._before if not self._back(name)]:
            if time.monotonic() > deadline:
                what = f"{', '.join(waiting)}: not running again within {SETTLED:.0f} s"
                raise KitError(what, "see `kit status`; then kit host prepare --run continues")
            time.sleep(1)

    def _back(self, name: str) -> bool:
        try:
            now = next((each for each in self._target.status() if each.job == name), None)
        except KitError:
            return False  # The manager is on its way back.
        if now is None or now.state in ENDED:
            return True
        before = self._before[name].world_size or 0
        return now.state is State.RUNNING and (now.world_size or 0) >= before

    def _running(self) -> dict[str, JobStatus]:
        return {each.job: each for each in self._target.status() if each.state not in ENDED}


def _announce(order: Sequence[Wave], found: Found) -> None:
    """Say which engines restart, in which order, and what ends by that."""
    for wave in order:
        names = []
        for host in wave:
            result = found[host.name]
            if isinstance(result, Report) and result.restart:
                containers = result.restart[0]
                told = f" ({count(containers, 'container')} will end)" if containers else ""
                names.append(f"{host.name}{told}")
        if names:
            click.echo(f"restart of Docker: {', '.join(names)}")


def _confirm(todo: Sequence[Host], *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "without a terminal kit cannot ask for confirmation",
            "read the changes above, then add --yes",
        )
    click.confirm(f"change {', '.join(host.name for host in todo)}?", abort=True)
