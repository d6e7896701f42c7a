"""`kit status`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kit.commands.follow import failures, score
from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.errors import InputError, KitError
from kit.paths import Paths, identity
from kit.runtime.health import with_health
from kit.runtime.history import Deployment, newest
from kit.runtime.proof import not_deployed, wrong_gpus
from kit.runtime.rendered import rendered
from kit.runtime.status import ENDED, HostStatus, JobStatus, SessionStatus, State
from kit.values import count, names_gpu, show_age
from kit.workload.types import Kind
from trainer.contract.words import nearest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

INTERVAL = 2.0
"""Seconds between two updates with --watch."""
RETRY = 30.0
"""Seconds until a failed read of the history is repeated: a host that is off takes 10 s."""
MANY = 16
"""With more hosts per job, equal ones share a line."""
SILENT = 30.0
"""Seconds without a step before a notice; the trainer reports one at least every 10 s."""


@click.command("status", short_help="Show jobs and servers.")
@click.argument("names", metavar="[JOBS]...", nargs=-1)
@with_paths
@with_engine
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    paths: Paths, names: tuple[str, ...], engine: str | None, *, watch: bool, as_json: bool
) -> int:
    """Show JOBS (default: all jobs and servers): hosts, ranks, GPUs, progress, newest checkpoint.

    A server has the name of its stack, serve-NAME. The number before a GPU's UUID is its place in
    the inventory, where `kit discover` writes the GPUs in the order of nvidia-smi.

    The exit status is 1 if a container sees other GPUs than it was given. Workloads whose GPUs
    differ from the rendered files are listed, and those that are not deployed: `kit deploy` moves
    or starts them.
    """
    cluster, own = identity(paths)
    engine, tree = engine or own, paths.tree(cluster)
    target, files = target_for(engine, cluster, tree), rendered(tree)
    # With engine local the jobs use this machine's GPUs, not those of the plan.
    planned = files.fixed if target.on_hosts else {}
    deployments = Deployments(target.history)

    def look() -> Report:
        every = target.status()
        _require_known(names, {*files.devices, *(status.job for status in every)})
        selected = [status for status in every if not names or status.job in names]
        statuses = with_health(selected, files.checks)
        deployed = {status.job for status in every}
        missing = [name for name, hosts in files.fixed.items() if hosts and name not in deployed]
        return Report(
            cluster,
            statuses,
            wrong_gpus(every, names),
            not_deployed(statuses, planned),
            (
                *(() if names else target.missing()),
                *(
                    f"{name}: not deployed: `kit deploy {name}` starts it"
                    for name in missing
                    if not names or name in names
                ),
            ),
            files.indexes,
            deployments.of(selected),
        )

    if watch:
        _watch(lambda: show(look()))
    report = look()
    if as_json:
        click.echo(json.dumps(document(report), indent=2))
    else:
        _print(console(), show(report))
    return 1 if report.wrong_gpus else 0


@dataclass(frozen=True, slots=True)
class Report:
    """The workloads and the findings on their GPUs; see `kit.runtime.proof`.

    `missing` are lines about rendered parts that are not deployed. `indexes` are the indexes of the
    hosts' GPUs in the inventory. `deployments` are the newest of the workloads.
    """

    cluster: str
    statuses: tuple[JobStatus, ...]
    wrong_gpus: tuple[str, ...]
    not_deployed: tuple[str, ...]
    missing: tuple[str, ...] = ()
    indexes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deployments: Mapping[str, Deployment] = field(default_factory=dict)


class Deployments:
    """The newest deployment of each workload, read again only after another start or a failure."""

    def __init__(
        self,
        history: Callable[[], Iterable[Deployment]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history, self._clock = history, clock
        self._starts: dict[str, float] = {}
        self._newest: dict[str, Deployment] = {}
        self._again: float | None = None  # When to try once more.

    def of(self, statuses: Sequence[JobStatus]) -> Mapping[str, Deployment]:
        """Return those of workloads; if the history cannot be read, those that were read last."""
        starts = {status.job: status.started for status in statuses}
        if starts != self._starts or (self._again and self._clock() >= self._again):
            self._starts, self._again = starts, self._clock() + RETRY
            with suppress(KitError):
                self._newest, self._again = newest(self._history()), None
        return {job: self._newest[job] for job in starts if job in self._newest}


def _require_known(names: Sequence[str], known: Collection[str]) -> None:
    """Raise InputError for a name that is not known."""
    for name in names:
        if name not in known:
            hint = nearest(name, sorted(known)) if known else "describe one in jobs/<name>.yaml"
            raise InputError(f"there is no job or server {name}", hint)


def document(report: Report) -> dict[str, Any]:
    """Return the JSON document: jobs and servers separately, wrong GPUs, what is missing."""
    by_kind: dict[Kind, list[dict[str, Any]]] = {kind: [] for kind in Kind}
    for status in report.statuses:
        last = report.deployments.get(status.job)
        deployed = asdict(last) if last else None
        by_kind[status.kind].append(
            asdict(status) | {"planned": status.planned, "deployment": deployed}
        )
    return {
        "cluster": report.cluster,
        "jobs": by_kind[Kind.JOB],
        "servers": by_kind[Kind.SERVER],
        "wrong_gpus": list(report.wrong_gpus),
        "not_deployed": list(report.not_deployed),
        "missing": list(report.missing),
    }


def _print(screen: Console, parts: Iterator[RenderableType]) -> None:
    for part in parts:
        screen.print(part)


def _watch(look: Callable[[], Iterator[RenderableType]]) -> None:
    """Repeat the output: in place on a terminal, otherwise appended.

    Raises what the first look raises; a later one is tried again.
    """
    from rich.console import Group
    from rich.live import Live

    screen, shown = console(), tuple(look())
    if not screen.is_terminal:
        _print(screen, iter(shown))
        while True:
            time.sleep(INTERVAL)
            try:
                _print(screen, look())
            except KitError as error:
                screen.print(_lost(error))
    with Live(Group(*shown), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(INTERVAL)
            try:
                shown = tuple(look())
                live.update(Group(*shown), refresh=True)
            except KitError as error:
                # The last state stays on the screen.
                live.update(Group(*shown, _lost(error)), refresh=True)


def _lost(error: KitError) -> RenderableType:
    from rich.text import Text

    words = f"{time.strftime('%H:%M:%S')}: cannot be read now, what is above is older: {error}"
    return Text(words, overflow="fold", no_wrap=False)


def show(report: Report) -> Iterator[RenderableType]:
    """Yield a table of the jobs, a table of their hosts, and the remaining messages."""
    from rich.text import Text

    if not report.statuses:
        none = f"nothing runs for cluster {report.cluster}, and no job is rendered: see `kit plan`"
        yield from report.missing or (none,)
        return
    rows = table("job", "state", "for", "epoch", "step", "speed", "left", "checkpoint")
    for status in report.statuses:
        rows.add_row(*_row(status))
    yield rows
    hosts = table("job", "host", "state", "ranks", "GPUs", "")
    for status in report.statuses:
        for row in _host_rows(status, report.indexes):
            hosts.add_row(*row)
    yield hosts
    for status in report.statuses:
        last = report.deployments.get(status.job)
        commit = f"deployed from {last.source}" if last and last.commit else ""
        code = f"code {last.code}" if last and last.code else ""
        over = status.session.ended if status.session else ""
        messages = (*_running_messages(status), *failures(status), status.message, over)
        place = status.queue.words if status.queue else ""
        for text in (place, score(status), *messages, commit, code):
            if text:
                yield f"{status.job}: {text}"
    for text in report.not_deployed:
        yield f"{text}: `kit deploy` moves them"
    yield from report.missing
    for text in report.wrong_gpus:
        yield Text(f"WRONG GPUs: {text}", style="bold red")


def describe_session(session: SessionStatus) -> str:
    """Return until when a session is open, and whether somebody uses it."""
    left = session.until - time.time()
    end = time.strftime("%a %H:%M", time.localtime(session.until)) if session.until else ""
    until = f"open until {end}, {show_age(left)} still" if end else "open without an end"
    if session.connected:
        return f"{until}; {count(session.connected, 'connection')}"
    limit = f" of {show_age(session.idle)}" if session.idle else ""
    return f"{until}; unused for {show_age(session.unused)}{limit}"


def _running_messages(status: JobStatus) -> Iterator[str]:
    """Yield messages on a running workload: its URLs, missing ranks, or missing steps."""
    if status.state in ENDED:
        return
    if status.urls and status.state is State.RUNNING:
        yield f"answers at {', '.join(status.urls)}"
    if status.serves or status.state is not State.RUNNING:
        return
    if status.session:
        yield describe_session(status.session)
    if status.world_size is not None and status.world_size != status.planned:
        yield f"{status.world_size} of {count(status.planned, 'rank')} train"
    since = time.time() - status.last_step if status.last_step is not None else 0.0
    if since >= SILENT:
        yield f"no step for {show_age(since)}"


def _row(status: JobStatus) -> tuple[str, ...]:
    seconds = (status.ended or time.time()) - status.started
    progress = status.progress
    left = progress.seconds_left if progress and status.state not in ENDED else None
    return (
        status.job,
        status.state,
        show_age(seconds),
        f"{progress.epoch}/{progress.epochs}" if progress else "-",
        f"{progress.step:,}/{progress.steps:,}" if progress else "-",
        (progress.speed if progress else "") or "-",
        show_age(left) if left is not None else "-",
        status.checkpoint or "-",
    )


def _host_rows(
    status: JobStatus, indexes: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, ...]]:
    noun = "replica" if status.serves else "GPU" if status.session else "rank"
    if len(status.hosts) <= MANY:
        for host in status.hosts:
            places = indexes.get(host.host, {})
            yield (status.job, host.host, *_host(host, places, noun))
        return

    def key(host: HostStatus) -> tuple[str, str]:
        return host.state, host.message

    for _, equal in groupby(sorted(status.hosts, key=key), key=key):
        alike = list(equal)
        names = f"{alike[0].host} … {alike[-1].host}" if len(alike) > 1 else alike[0].host
        processes = sum(host.processes for host in alike)
        first = alike[0]
        size = f"{count(len(alike), 'host')}, {count(processes, 'GPU')}"
        yield status.job, names, first.state, "", size, first.message


def _host(host: HostStatus, places: Mapping[str, int], noun: str) -> tuple[str, str, str, str]:
    ranks = ", ".join(map(str, host.ranks)) or count(host.processes, noun)
    if host.spare:
        ranks = f"{ranks}, a spare" if host.ranks else "spare"
    state = host.state if host.exit_status in {None, 0} else f"{host.state} ({host.exit_status})"
    gpus = ", ".join(_gpu(device, places) for device in host.devices)
    return state, ranks, gpus, host.message


def _gpu(device: str, places: Mapping[str, int]) -> str:
    """Return a GPU's UUID after its index; a GPU without a UUID has only its index."""
    place = places.get(device.lower()) if names_gpu(device) else None
    return device if place is None else f"{place}: {device}"
