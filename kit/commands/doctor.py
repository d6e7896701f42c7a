"""`kit doctor`: what is wrong with the hosts, and what to run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import click

from kit.commands.expectations import expectations
from kit.commands.options import chosen_hosts, with_paths
from kit.datasets.sizes import load as load_sizes
from kit.doctor.examine import examine
from kit.doctor.facts import Wanted
from kit.doctor.findings import Finding, Verdict
from kit.doctor.fix import Fix, apply, fixes_for
from kit.doctor.show import document, lines, summary
from kit.doctor.wanted import only
from kit.errors import InputError
from kit.paths import Paths
from kit.project import load_lowered
from kit.targets.lowered import Lowered

COLOURS = {Verdict.OK: None, Verdict.NOTE: "yellow", Verdict.WRONG: "red"}


@click.command("doctor", short_help="Find what is wrong with the hosts, and say what to run.")
@with_paths
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--passive", is_flag=True, help="Start no containers: no traffic between the hosts.")
@click.option("--all", "every", is_flag=True, help="A line for each check of each host.")
@click.option("--fix", is_flag=True, help="Correct what is safe to correct; ask before.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: Paths,
    hosts: tuple[str, ...],
    *,
    passive: bool,
    every: bool,
    fix: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Check the hosts, and the connections among them.

    By default, all hosts of the inventory. Each finding has a code that docs/troubleshooting.md
    explains, the evidence, and the command to run. On hosts that have a job's image, short-lived
    containers of it test ports, MTU, GPUs and data; they use no GPU of a running job.

    The exit status is 0 if all is well (notes do not count), 1 if something is wrong.
    """
    if yes and not fix:
        raise InputError("--yes is an answer to --fix", "run kit doctor --fix --yes")
    wanted = _wanted(load_lowered(paths), paths, hosts)
    examination = _examine(wanted, passive=passive)
    if fix:
        if not as_json:
            _print(examination, every=every)
        if _fix(fixes_for(examination.findings, wanted), yes=yes):
            examination = _examine(wanted, passive=passive)
        elif not as_json:
            return examination.status
    if as_json:
        answer = document(examination.findings, wanted.cluster)
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _print(examination, every=every)
    return examination.status


@dataclass(frozen=True, slots=True)
class _Examination:
    """The findings of one examination, its hosts, and its time in seconds."""

    findings: Sequence[Finding]
    hosts: int
    seconds: float

    @property
    def status(self) -> int:
        return 1 if any(each.verdict is Verdict.WRONG for each in self.findings) else 0


def _wanted(lowered: Lowered, paths: Paths, names: Sequence[str]) -> Wanted:
    if not lowered.on_hosts:
        raise InputError(
            f"{lowered.plan.file} says `engine: local`: there are no other hosts to examine",
            "write `engine: swarm` or `engine: compose`",
        )
    wanted = expectations(lowered, paths, sizes=load_sizes(paths.inventory))
    chosen = chosen_hosts([each.host for each in wanted.hosts], names)
    return only(wanted, [host.name for host in chosen]) if names else wanted


class _Shows(Protocol):
    def __call__(self, text: str, /) -> object: ...


def _examine(wanted: Wanted, *, passive: bool) -> _Examination:
    began = time.monotonic()
    with _progress() as shows:
        findings = examine(wanted, active=not passive, progress=shows)
    return _Examination(findings, len(wanted.hosts), time.monotonic() - began)


@contextmanager
def _progress() -> Iterator[_Shows]:
    """Yield a function that shows progress on stderr; without a terminal, each text once."""
    if not sys.stderr.isatty():
        phases: set[str] = set()

        def show(text: str) -> None:
            phase = text.partition(":")[0]
            if phase not in phases:
                phases.add(phase)
                click.echo(f"examining {phase}", err=True)

        yield show
        return
    from rich.console import Console
    from rich.status import Status

    with Status("asking the hosts", console=Console(stderr=True)) as status:
        yield status.update


def _print(examination: _Examination, *, every: bool) -> None:
    for verdict, line in lines(examination.findings, every=every):
        click.secho(line, fg=COLOURS[verdict])
    click.echo(summary(examination.findings, examination.hosts, examination.seconds))


def _fix(fixes: Sequence[Fix], *, yes: bool) -> bool:
    """Apply the fixes after a confirmation; return whether there was something to do."""
    if not fixes:
        click.echo("nothing that kit can correct by itself", err=True)
        return False
    for each in fixes:
        click.echo(f"fix {each.host}: {each.what}", err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                "without a terminal kit cannot ask for confirmation",
                "read the fixes above, then add --yes",
            )
        click.confirm("apply these fixes?", abort=True, err=True)
    for each in fixes:
        failed = apply(each)
        click.echo(f"fix {each.host}: {failed or 'done'}", err=True)
    return True
