"""`kit logs`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kit.commands.follow import prefixed
from kit.commands.options import with_paths
from kit.commands.targets import target_for, with_engine
from kit.errors import InputError, KitError, joined
from kit.paths import Paths, identity
from kit.plan.storage import volume_name
from kit.runtime.events import is_event
from kit.runtime.target import Target
from kit.values import WrongValueError, duration
from kit.workload.names import kind_of
from kit.workload.types import Kind
from trainer.contract.words import nearest


@click.command("logs", short_help="Print the log lines of jobs and servers.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("-f", "--follow", is_flag=True, help="Continue until the jobs have ended.")
@click.option("--host", help="Only the lines of this host.")
@click.option("--rank", type=int, help="Only the lines of this rank.")
@click.option("--since", metavar="DURATION", help="Only lines since so long ago, for example 10m.")
@click.option("--events", is_flag=True, help="Also print the events for programs.")
@click.option(
    "--dumps",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Instead of lines: copy the files of NCCL's flight recorder from the hosts.",
)
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
    dumps: Path | None,
) -> None:
    """Print what the hosts of JOBS (default: all) have printed, with host and rank.

    The lines of all hosts are in the order of time.
    """
    begin = _begin(since)
    cluster, own = identity(paths)
    target = target_for(engine or own, cluster, paths.tree(cluster))
    if dumps is not None:
        return _dumps(cluster, paths.tree(cluster), target, jobs, dumps)
    known = target.known()
    # A server's log has no end.
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
    return None


def _dumps(cluster: str, tree: Path, target: Target, jobs: tuple[str, ...], folder: Path) -> None:
    """Write the files of each job to a separate folder, in the layout of torchfrtrace."""
    from kit.runtime.dumps import dumps
    from kit.runtime.rendered import rendered

    if not target.on_hosts:
        raise InputError("there is no flight recorder with engine local", "leave out --dumps")
    there = rendered(tree)
    known = [name for name in there.devices if kind_of(name) is Kind.JOB]
    if unknown := next((name for name in jobs if name not in known), None):
        raise InputError(f"no job {unknown} is rendered", nearest(unknown, known))
    failed: list[KitError] = []
    for name in jobs or known:
        hosts = [host for host in there.hosts if host.name in there.devices[name]]
        files, errors = dumps(hosts, volume_name(cluster, f"{name}-dumps"))
        failed += errors
        (folder / name).mkdir(parents=True, exist_ok=True)
        for each in files:
            (folder / name / each.name).write_bytes(each.content)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time))
            click.echo(f"{folder / name / each.name}: from {each.host}, written {when}")
        if files:
            click.echo(f"read them: torchfrtrace --prefix nccl_trace_rank_ {folder / name}")
        elif not errors:
            click.echo(f"{name}: no rank has reached its timeout")
    if failed:
        raise joined(failed)


def _begin(since: str | None) -> float | None:
    if since is None:
        return None
    try:
        return time.time() - duration(since)
    except WrongValueError as error:
        raise InputError(f"--since: {error.what}", error.fix) from None
