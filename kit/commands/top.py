"""`kit top`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.paths import Paths, identity
from kit.runtime.rendered import rendered
from kit.runtime.status import ENDED, JobStatus
from kit.runtime.target import Target
from kit.top.board import Row, rows
from kit.top.feeds import Feeds
from kit.top.smi import Gpu, query

if TYPE_CHECKING:
    from rich.console import RenderableType

INTERVAL = 2
"""Seconds between two queries of the GPUs, and between two updates."""
UNKNOWN = Gpu(0, "", "", None, None, None, None, None, None)
"""The values for a rank on a CPU."""
STATUS = 6.0
"""Seconds between two queries of the jobs: ranks report their step times every 10 s."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one moment; `messages` are those of hosts without some of their GPUs."""

    rows: tuple[Row, ...]
    messages: dict[str, str]
    statuses: tuple[JobStatus, ...]

    @property
    def present(self) -> tuple[JobStatus, ...]:
        """The jobs and servers that have not ended, those that wait included."""
        return tuple(each for each in self.statuses if each.state not in ENDED)


@click.command("top", short_help="Show the GPUs of all hosts and the ranks that hold them.")
@with_paths
@with_engine
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON once and end.")
def command(paths: Paths, engine: str | None, *, once: bool, as_json: bool) -> None:
    """Show the GPUs of all hosts until Ctrl-C: utilization, memory, temperature, power, job, rank.

    Ranks of the built-in trainer also show the time of a step; a rank that the others wait for is
    marked as slow. Without a terminal, every update is printed as lines.
    """
    cluster, own = identity(paths)
    name, tree = engine or own, paths.tree(cluster)
    target = target_for(name, cluster, tree)
    once = once or as_json
    hosts = rendered(tree).hosts if target.on_hosts else ()
    every = None if once else INTERVAL
    feeds = Feeds(target.commands(f"exec {query(every)}"), loops=not once)
    try:
        watch = _Watch(target, feeds, [host.name for host in hosts])
        feeds.wait()
        if as_json:
            click.echo(json.dumps(document(cluster, watch.look()), indent=2))
        elif once:
            _print(show(watch.look()))
        else:
            _follow(watch.look)
    finally:
        feeds.close()


class _Watch:
    """Combines the GPUs with the jobs' status, which is read less often."""

    def __init__(self, target: Target, feeds: Feeds, hosts: Sequence[str]) -> None:
        self._target, self._feeds, self._hosts = target, feeds, hosts
        self._statuses: tuple[JobStatus, ...] = ()
        self._asked = -STATUS

    def look(self) -> Picture:
        """Return the present state."""
        if time.monotonic() - self._asked >= STATUS:
            self._statuses, self._asked = self._target.status(), time.monotonic()
        feeds = self._feeds.feeds
        gpus = {name: feed.gpus.values() for name, feed in feeds.items()}
        holders = [host.host for status in self._statuses for host in status.hosts]
        messages = {name: feed.message for name, feed in feeds.items() if feed.message}
        # With engine local, all hosts of a job are this machine: their GPUs are its own.
        listing = rows(gpus, self._statuses, [*self._hosts, *holders])
        return Picture(listing, messages, self._statuses)


def document(cluster: str, picture: Picture) -> dict[str, Any]:
    """Return the JSON document; bytes, watts, °C, seconds."""
    return {
        "cluster": cluster,
        "gpus": [asdict(row) for row in picture.rows],
        "jobs": [
            {
                "job": status.job,
                "state": status.state,
                "queue": asdict(status.queue) if status.queue else None,
            }
            for status in picture.present
        ],
        "messages": picture.messages,
    }


def _print(parts: Iterator[RenderableType]) -> None:
    screen = console()
    for part in parts:
        screen.print(part)


def _follow(look: Callable[[], Picture]) -> None:
    """Repeat the output: in place on a terminal, otherwise as lines."""
    from rich.console import Group
    from rich.live import Live

    screen = console()
    if not screen.is_terminal:
        while True:
            for line in lines(look()):
                click.echo(line)
            time.sleep(INTERVAL)
    with Live(Group(*show(look())), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(INTERVAL)
            live.update(Group(*show(look())), refresh=True)


def show(picture: Picture) -> Iterator[RenderableType]:
    """Yield a table of the GPUs and ranks, a line for each job, and the messages of hosts."""
    from rich.text import Text

    right = {"GPU", "use", "memory", "temp", "power", "rank", "step", "own work"}
    names = ("host", "GPU", "model", "use", "memory", "temp", "power", "job", "rank", "step")
    board = table(*names, "own work", "", right=right)
    before = ""
    for row in picture.rows:
        cells = list(_cells(row))
        if row.host == before:
            cells[0] = ""
        before = row.host
        mark = Text(f"slow: {row.factor:.1f} ×", style="bold red") if row.slow else ""
        board.add_row(*cells, mark)
    yield board
    for status in picture.present:
        yield _job(status)
    for host, message in picture.messages.items():
        yield Text(f"{host}: {message}", style="yellow")
    if not picture.rows and not picture.messages:
        yield "no GPUs and no ranks to show"


def lines(picture: Picture) -> Iterator[str]:
    """Yield a line for each GPU or rank and each job of the queue, for a file or a pipe."""
    now = time.strftime("%H:%M:%S")
    for row in picture.rows:
        names = ("host", "gpu", "model", "use", "memory", "temp", "power", "job", "rank", "step")
        cells = zip((*names, "work"), _cells(row), strict=True)
        words = [f"{name}={cell.replace(' ', '')}" for name, cell in cells if cell not in {"", "-"}]
        yield " ".join([now, *words, *([f"slow={row.factor:.2f}"] if row.slow else [])])
    for status in picture.present:
        if place := status.queue:
            owner = f"owner={place.owner} priority={place.priority}"
            waited = f"waited={place.waited_seconds:.0f}s"
            line = f"{now} job={status.job} state={status.state} {owner} {waited} {place.why}"
            yield line.rstrip()
    for host, message in picture.messages.items():
        yield f"{now} host={host} {message}"


def _cells(row: Row) -> Iterator[str]:
    gpu, pace = row.gpu or UNKNOWN, row.pace
    yield row.host
    yield str(gpu.index) if row.gpu else "CPU"
    yield gpu.model
    yield _number(gpu.utilization, "{:.0%}")
    used = _number(gpu.used, "{:.1f}", 2**30)
    yield f"{used}/{_number(gpu.memory, '{:.0f} GiB', 2**30)}" if row.gpu else "-"
    yield _number(gpu.temperature, "{:.0f} °C")
    power = _number(gpu.power, "{:.0f}")
    yield f"{power}/{_number(gpu.limit, '{:.0f} W')}" if row.gpu else "-"
    yield row.holder or ("free" if row.gpu else "-")
    yield "-" if row.rank is None else str(row.rank)
    yield _number(pace.seconds * 1000 if pace else None, "{:.1f} ms")
    yield _number(pace.work * 1000 if pace else None, "{:.1f} ms")


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else form.format(value / unit)


def _job(status: JobStatus) -> str:
    words = [f"{status.job}: {status.state}"]
    if progress := status.progress:
        words.append(f"epoch {progress.epoch}/{progress.epochs}, step {progress.step:,}")
        if progress.speed:
            words.append(progress.speed)
    if place := status.queue:
        words.append(place.words)
        words += [place.why] if place.why else []
    return ", ".join(words)
