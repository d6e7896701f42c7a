"""`kit logs`."""

from __future__ import annotations

import click

from kit.commands.engines import engine_for, with_engine
from kit.commands.follow import prefixed
from kit.commands.options import with_paths
from kit.errors import InputError, nearest
from kit.project import Paths, identity


@click.command("logs", short_help="Print what the hosts have printed.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs have ended.")
@click.option("--host", help="This host's lines alone.")
def command(
    paths: Paths, jobs: tuple[str, ...], engine: str | None, follow: bool, host: str | None
) -> None:
    """Print what the hosts of JOBS (all by default) have printed, the host in front."""
    cluster, own = identity(paths)
    carrier = engine_for(engine or own, cluster, paths.tree(cluster))
    names = jobs or tuple(status.job for status in carrier.status())
    hosts = {part.host for job in carrier.status() if job.job in names for part in job.hosts}
    if host is not None and hosts and host not in hosts:
        raise InputError(f"no host {host} takes part", nearest(host, sorted(hosts)))
    for line in carrier.logs(names, follow=follow):
        if host in {None, line.host}:
            click.echo(prefixed(line, several=len(names) > 1))
