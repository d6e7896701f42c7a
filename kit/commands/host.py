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
from kit.commands.options import chosen_hosts, with_paths
from kit.commands.targets import target_for
from kit.errors import InputError, KitError
from kit.hosts.docker import Docker
from kit.model import Host, Tree
from kit.paths import Paths
from kit.plan.work import managers_of
from kit.prepare.jobs import RunningJobs
from kit.prepare.order import Wave, waves
from kit.prepare.remote import Task, packages_in
from kit.prepare.report import Report, Status
from kit.prepare.run import Preparation, without_password
from kit.project import load_lowered
from kit.rendered import render_lowered
from kit.targets.lowered import HOST_FILE, MERGE_FILE, STEPS_FILE, Lowered
from kit.targets.swarm.observe import first_answer
from kit.values import count

Answers = Mapping[str, Report | KitError]
FEW = 8
"""Up to this number of hosts, lines about correct settings are shown too."""


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
    reports = _look(preparation, chosen)
    if as_json:
        click.echo(json.dumps(_document(reports), indent=2, ensure_ascii=False))
    else:
        _show(reports)
    if run:
        return _run(preparation, lowered, chosen, reports, paths, yes=yes)
    return _status(reports, check=check, quiet=as_json)


def _chosen(lowered: Lowered, names: Sequence[str]) -> list[Host]:
    if not lowered.on_hosts:
        raise InputError(
            f"{lowered.plan.file} says `engine: local`: this machine needs no preparation",
            "write `engine: swarm` or `engine: compose`",
        )
    return chosen_hosts(lowered.plan.hosts, names)


def _own_files(rendered: Tree) -> Tree:
    own = (STEPS_FILE, MERGE_FILE, HOST_FILE)
    ends = ("/prepare.sh", "/daemon.json")
    return {name: text for name, text in rendered.items() if name in own or name.endswith(ends)}


def _manager(lowered: Lowered) -> Docker:
    return first_answer(managers_of(lowered.plan.hosts))[1]


def _look(preparation: Preparation, hosts: Sequence[Host]) -> Answers:
    """Ask the hosts what would change, and the person for the passwords that sudo needs."""
    reports = dict(preparation.look(hosts))
    needed = without_password(reports)
    if needed and sys.stdin.isatty():
        before = ""
        for host in (host for host in hosts if host.name in needed):
            same = ", empty: the same" if before else ""
            text = f"password of {host.ssh} for sudo{same}"
            before = click.prompt(text, hide_input=True, default=before, show_default=False)
            preparation.passwords[host.name] = before
        reports |= preparation.look([host for host in hosts if host.name in needed])
    return reports


def _show(reports: Answers) -> None:
    for name, result in reports.items():
        if isinstance(result, KitError):
            click.echo(f"kit: {result}", err=True)
            continue
        click.echo(f"{name}:")
        for line in result.lines:
            if line.kind == "ok" and len(reports) > FEW:
                continue
            click.echo(f"  {line.kind:8} {line.text}" if line.kind else f"  {line.text}")


def _document(answers: Answers) -> dict[str, object]:
    reports = [each.document() for each in answers.values() if isinstance(each, Report)]
    failed = [each.message for each in answers.values() if isinstance(each, KitError)]
    return {"hosts": reports, "failed": failed}


def _status(answers: Answers, *, check: bool, quiet: bool) -> int:
    """Return the exit status of a command that changes no host."""
    reports = [each for each in answers.values() if isinstance(each, Report)]
    if len(reports) < len(answers):
        return 1
    if conflicts := _conflicts(answers):
        if quiet:
            return 2
        raise _conflict(conflicts)
    changed = [each.host.name for each in reports if each.changes]
    if not quiet:
        advice = f"{', '.join(changed)}: kit host prepare --run makes these changes"
        click.echo(advice if changed else "nothing to change")
    return 1 if changed and (check or quiet) else 0


def _conflicts(answers: Answers) -> list[str]:
    reports = (each for each in answers.values() if isinstance(each, Report))
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
    reports: Answers,
    paths: Paths,
    *,
    yes: bool,
) -> int:
    if conflicts := _conflicts(reports):
        raise _conflict(conflicts)
    todo = [host for host in hosts if _changes(reports[host.name])]
    lost = any(isinstance(each, KitError) for each in reports.values())
    if not todo:
        if not lost:
            click.echo("nothing to change")
        return 1 if lost else 0
    order = _order(preparation, lowered, todo, reports, paths.tree(lowered.cluster))
    _announce(order, reports)
    _confirm(todo, yes=yes)
    began = time.monotonic()
    done = preparation.change(todo)
    failed = [each for each in done.values() if isinstance(each, KitError) or each.problems]
    if failed:
        raise KitError(
            _failure_text(failed), "kit host prepare --run continues: what is done stays done"
        )
    waiting = {name for name, each in done.items() if _waits(each)}
    order = [tuple(host for host in wave if host.name in waiting) for wave in order]
    preparation.restart([wave for wave in order if wave])
    seconds = time.monotonic() - began
    click.echo(f"{count(len(todo), 'host')} prepared in {seconds:.0f} s")
    ended = [each for each in map(done.__getitem__, waiting) if _containers(each)]
    if ended and not lowered.managers:
        click.echo("next: kit deploy, which starts what did not start again with Docker")
    return 1 if lost else 0


def _changes(result: Report | KitError) -> bool:
    return isinstance(result, Report) and bool(result.changes)


def _waits(result: Report | KitError) -> bool:
    return isinstance(result, Report) and result.status == Status.WAITS


def _containers(result: Report | KitError) -> int:
    """Return the number of containers that the restart of a host ends."""
    return result.restart.containers if isinstance(result, Report) and result.restart else 0


def _failure_text(failed: Sequence[Report | KitError]) -> str:
    return "\n".join(
        each.message
        if isinstance(each, KitError)
        else f"{each.host.name}: {'; '.join(each.problems)}"
        for each in failed
    )


def _order(
    preparation: Preparation, lowered: Lowered, todo: Sequence[Host], reports: Answers, root: Path
) -> list[Wave]:
    """Return the order of restarts; some hosts turn out to need one only during the changes."""
    restarts = [each.restart for each in reports.values() if isinstance(each, Report)]
    in_swarm = any(each is not None and each.swarm for each in restarts)
    managers = {host.name for host in lowered.managers} if in_swarm else set[str]()
    busy = any(each is not None and each.containers for each in restarts)
    if not busy or (lowered.managers and not in_swarm):
        return waves(todo, managers, alone=False)
    jobs = RunningJobs(target_for(lowered.engine, lowered.cluster, root), click.echo)
    preparation.settle = jobs.settle
    return waves(todo, managers, alone=jobs.several_hosts)


def _announce(order: Sequence[Wave], reports: Answers) -> None:
    """Print which engines restart, in which order, and how many containers end."""
    for wave in order:
        names = []
        for host in wave:
            result = reports[host.name]
            if isinstance(result, Report) and result.restart:
                containers = _containers(result)
                ending = f" ({count(containers, 'container')} will end)" if containers else ""
                names.append(f"{host.name}{ending}")
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
