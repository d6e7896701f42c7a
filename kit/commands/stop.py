"""`kit stop`."""

from __future__ import annotations

import click

from kit.commands.deploy import report
from kit.commands.engines import engine_for, with_engine
from kit.commands.options import with_paths
from kit.engine import ENDED, is_server
from kit.project import Paths, identity


@click.command("stop", short_help="End jobs, after a last checkpoint.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("--all", "everything", is_flag=True, help="End the servers too.")
def command(paths: Paths, jobs: tuple[str, ...], engine: str | None, *, everything: bool) -> None:
    """End JOBS (all that run by default), after a last checkpoint.

    Servers go on unless they are named, as serve-NAME, or all are meant.
    """
    cluster, own = identity(paths)
    carrier = engine_for(engine or own, cluster, paths.tree(cluster))
    running = tuple(status.job for status in carrier.status() if status.state not in ENDED)
    remote = () if carrier.tied_to_terminal else tuple(carrier.known())
    found = remote or running
    ended = jobs or tuple(name for name in found if everything or not is_server(name))
    for job in ended:
        report(carrier.stop(job))
    left = [name for name in found if is_server(name) and name not in ended]
    if left and not jobs:
        click.echo(f"{', '.join(left)} goes on: `kit stop {' '.join(left)}` ends it")
    elif not ended:
        click.echo("nothing is running")
