"""`kit logs`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import click

from kit.commands.follow import prefixed
from kit.commands.options import with_paths
from kit.commands.targets import target_for, with_engine
from kit.errors import InputError, KitError, joined
from kit.paths import Paths, identity
from kit.plan.storage import volume_name
from kit.runtime.lines import is_event
from kit.runtime.past import Past
from kit.runtime.status import LogLine, NoLinesError
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
@click.option(
    "--since",
    metavar="TIME",
    help="Only lines of the last 10m, for example, or since a day: yesterday, 2026-11-25, "
    "'2026-11-25 14:00'. With a day, kit reads the kept lines.",
)
@click.option(
    "--run",
    type=click.IntRange(1),
    help="Only the kept lines of this deployment of the job: its number in `kit history`.",
)
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
    run: int | None,
    events: bool,
    dumps: Path | None,
) -> None:
    """Print what the hosts of JOBS (default: all) have printed, with host and rank.

    The lines of all hosts are in the order of time; with engine local, the lines of one host
    follow those of another. With `monitoring: {logs: 30d}`, the hosts keep
    the lines of containers that are gone: kit reads these for a day, a run, or an ended job.
    """
    begin, kept = _begin(since, time.time())
    cluster, own = identity(paths)
    target = target_for(engine or own, cluster, paths.tree(cluster))
    if dumps is not None:
        return _dumps(cluster, paths.tree(cluster), target, jobs, dumps)
    past = Past(target, cluster, paths.tree(cluster))
    known = target.known()
    # A server's log has no end.
    names = jobs or tuple(
        name for name, each in known.items() if not (follow and each.kind is Kind.SERVER)
    )
    hosts = {host for name in names if name in known for host in known[name].hosts}
    if host is not None and hosts and host not in hosts:
        raise InputError(f"no host {host} takes part", nearest(host, sorted(hosts)))
    if run is not None or (kept and not follow):
        lines = _kept(past, jobs, begin, run)
    else:
        lines = _there(past, target, names, begin, follow=follow)
    for line in lines:
        wanted = host in {None, line.host} and rank in {None, line.rank}
        if wanted and (events or not is_event(line.text)):
            click.echo(prefixed(line, several=len(names) > 1))
    return None


def _there(
    past: Past, target: Target, names: Sequence[str], begin: float | None, *, follow: bool
) -> Iterator[LogLine]:
    """Yield the lines of containers; if they are gone, the lines that were kept of them."""
    try:
        yield from target.logs(names, follow=follow, since=begin)
    except (NoLinesError, InputError) as error:  # It may be one of long ago.
        try:
            yield from _kept(past, names, begin, None)
        except KitError:
            raise error from None


def _kept(
    past: Past, names: Sequence[str], begin: float | None, run: int | None
) -> Iterator[LogLine]:
    """Yield the lines that the hosts have kept, after notes about missing ones."""
    lines = past.lines(names, begin, run)
    for note in past.notes:
        click.echo(f"note: {note}", err=True)
    yield from lines


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


def _begin(since: str | None, now: float) -> tuple[float | None, bool]:
    """Return the time of the first line, and whether it was given as a day.

    Raises:
        InputError: It is neither a duration nor a day.
    """
    if since is None:
        return None, False
    days = {"today": 0, "yesterday": 1}
    if since in days:
        today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
        return (today - timedelta(days[since])).timestamp(), True
    if re.match(r"\d{4}-", since):
        try:
            return datetime.fromisoformat(since).timestamp(), True
        except ValueError as error:
            raise InputError(f"--since: {error}", "write for example 2026-11-25") from None
    try:
        return now - duration(since), False
    except WrongValueError as error:
        raise InputError(f"--since: {error.what}", f"{error.fix}, or yesterday") from None
