"""`kit logs`."""

from __future__ import annotations

import time

import click

from kit.commands.follow import prefixed
from kit.commands.options import with_paths
from kit.commands.targets import target_for, with_engine
from kit.errors import InputError
from kit.paths import Paths, identity
from kit.runtime.events import is_event
from kit.values import WrongValueError, duration
from kit.workload.types import Kind
from trainer.contract.words import nearest


@click.command("logs", short_help="Print what the hosts have printed.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs have ended.")
@click.option("--host", help="This host's lines alone.")
@click.option("--rank", type=int, help="This rank's lines alone.")
@click.option("--since", metavar="DURATION", help="Lines of the last 10m alone, for example.")
@click.option("--events", is_flag=True, help="Show the lines for programs too.")
def command(
    paths: Paths,
    jobs: tuple[str, ...],
    engine: str | None,
    *,
    follow: bool,
    host: str | None,
    rank: int | None,
    since: str | None,
    events: bool,
) -> None:
    """Print what the hosts of JOBS (all by default) have printed, host and rank in front.

    The lines of all hosts come in the order of time.
    """
    begin = _begin(since)
    cluster, own = identity(paths)
    target = target_for(engine or own, cluster, paths.tree(cluster))
    known = target.known()
    # A server's lines have no end to wait for.
    names = jobs or tuple(
        name for name, each in known.items() if not (follow and each.kind is Kind.SERVER)
    )
    hosts = {host for name in names if name in known for host in known[name].hosts}
    if host is not None and hosts and host not in hosts:
        raise InputError(f"no host {host} takes part", nearest(host, sorted(hosts)))
    for line in target.logs(names, follow=follow, since=begin):
        wanted = host in {None, line.host} and rank in {None, line.rank}
        if wanted and (events or not is_event(line.text)):
            click.echo(prefixed(line, several=len(names) > 1))


def _begin(since: str | None) -> float | None:
    if since is None:
        return None
    try:
        return time.time() - duration(since)
    except WrongValueError as error:
        raise InputError(f"--since: {error.what}", error.fix) from None
