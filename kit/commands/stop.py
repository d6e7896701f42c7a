"""`kit stop`."""

from __future__ import annotations

import click

from kit.commands.deploy import report
from kit.commands.engines import engine_for, with_engine
from kit.commands.options import with_paths
from kit.engine import ENDED
from kit.project import Paths, identity


@click.command("stop", short_help="End jobs, after a last checkpoint.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
def command(paths: Paths, jobs: tuple[str, ...], engine: str | None) -> None:
    """End JOBS (all that run by default), after a last checkpoint."""
    cluster, own = identity(paths)
    carrier = engine_for(engine or own, cluster, paths.tree(cluster))
    running = tuple(status.job for status in carrier.status() if status.state not in ENDED)
    remote = () if carrier.tied_to_terminal else tuple(carrier.known())
    if not (jobs or remote or running):
        click.echo("nothing is running")
    for job in jobs or remote or running:
        report(carrier.stop(job))
