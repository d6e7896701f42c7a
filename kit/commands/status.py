"""`kit status`."""

from __future__ import annotations

import dataclasses
import json
import time

import click

from kit.commands.engines import engine_for, with_engine
from kit.commands.follow import score
from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.engine import JobStatus
from kit.project import Paths, identity


@click.command("status", short_help="Show the jobs that were deployed.")
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def command(paths: Paths, engine: str | None, as_json: bool) -> None:
    """Show the jobs that were deployed: hosts, progress, newest checkpoint."""
    cluster, own = identity(paths)
    statuses = engine_for(engine or own, cluster, paths.tree(cluster)).status()
    if as_json:
        jobs = [dataclasses.asdict(status) for status in statuses]
        click.echo(json.dumps({"cluster": cluster, "jobs": jobs}, indent=2, default=str))
        return
    if not statuses:
        click.echo(f"nothing was deployed yet for cluster {cluster}: `kit deploy` starts the jobs")
        return
    show(statuses)


def show(statuses: tuple[JobStatus, ...]) -> None:
    """Print a table of the jobs, and one line a job for what does not fit in."""
    screen = console()
    rows = table("job", "state", "for", "hosts", "processes", "epoch", "step", "images/s")
    for status in statuses:
        rows.add_row(*_row(status))
    screen.print(rows)
    for status in statuses:
        for text in (score(status), status.message):
            if text:
                screen.print(f"{status.job}: {text}")
        if status.checkpoint is not None:
            screen.print(f"{status.job}: checkpoint {status.checkpoint}")


def _hosts(status: JobStatus) -> str:
    """Name the hosts one by one where they differ."""
    states = {host.state for host in status.hosts}
    if len(states) == 1:
        return f"{len(status.hosts)} {states.pop()}"
    return ", ".join(f"{host.host} {host.state}" for host in status.hosts) or "-"


def _row(status: JobStatus) -> tuple[str, ...]:
    seconds = (status.ended or time.time()) - status.started
    progress = status.progress
    rate = progress.images_per_second if progress else None
    return (
        status.job,
        status.state,
        f"{seconds:.0f} s",
        _hosts(status),
        str(sum(host.processes for host in status.hosts)),
        f"{progress.epoch}/{progress.epochs}" if progress else "-",
        f"{progress.step}/{progress.steps}" if progress else "-",
        f"{rate:,.0f}" if rate is not None else "-",
    )
