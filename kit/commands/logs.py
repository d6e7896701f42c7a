"""`kit logs`."""

from __future__ import annotations

import time

import click

from kit.commands.engines import engine_for, with_engine
from kit.commands.follow import prefixed
from kit.commands.options import with_paths
from kit.engine import is_server
from kit.errors import InputError, nearest
from kit.project import Paths, identity
from kit.values import WrongValueError, duration


@click.command("logs", short_help="Print what the hosts have printed.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs have ended.")
@click.option("--host", help="This host's lines alone.")
@click.option("--rank", type=int, help="This rank's lines alone.")
@click.option("--since", metavar="DURATION", help="Lines of the last 10m alone, for example.")
def command(
    paths: Paths,
    jobs: tuple[str, ...],
    engine: str | None,
    *,
    follow: bool,
    host: str | None,
    rank: int | None,
    since: str | None,
) -> None:
    """Print what the hosts of JOBS (all by default) have printed, host and rank in front.

    The lines of all hosts come in the order of time.
    """
    begin = _begin(since)
    cluster, own = identity(paths)
    carrier = engine_for(engine or own, cluster, paths.tree(cluster))
    known = carrier.known()
    # A server's lines have no end to wait for.
    names = jobs or tuple(name for name in known if not (follow and is_server(name)))
    hosts = {name for job in names for name in known.get(job, ())}
    if host is not None and hosts and host not in hosts:
        raise InputError(f"no host {host} takes part", nearest(host, sorted(hosts)))
    for line in carrier.logs(names, follow=follow, since=begin):
        if host in {None, line.host} and rank in {None, line.rank}:
            click.echo(prefixed(line, several=len(names) > 1))


def _begin(since: str | None) -> float | None:
    if since is None:
        return None
    try:
        return time.time() - duration(since)
    except WrongValueError as error:
        raise InputError(f"--since: {error.what}", error.fix) from None
