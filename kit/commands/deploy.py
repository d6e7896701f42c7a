"""`kit deploy`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from kit import tree
from kit.commands.engines import engine_for, with_engine
from kit.commands.follow import failed, follow, outcome
from kit.commands.options import with_paths
from kit.engine import ENDED, Engine, JobStatus
from kit.errors import InputError, KitError, nearest
from kit.model import EngineName
from kit.plan.types import JobPlan, Plan
from kit.project import Paths, load_plan, render_plan
from kit.values import count


@click.command("deploy", short_help="Start jobs and follow them.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option("--fresh", is_flag=True, help="Begin anew: forget the jobs' checkpoints.")
@click.option("--detach", is_flag=True, help="Return at once; the jobs go on without a terminal.")
def command(
    paths: Paths, jobs: tuple[str, ...], engine: str | None, fresh: bool, detach: bool
) -> int:
    """Start JOBS (all of jobs/*.yaml by default) from the rendered files, and follow them.

    Ctrl-C stops what this command has started, after a last checkpoint, and nothing else.
    """
    plan = load_plan(paths)
    root = paths.tree(plan.cluster)
    _refuse_stale(root, tree.changes(root, render_plan(plan, paths)))
    carrier = engine_for(engine or plan.engine, plan.cluster, root)
    # The files are for the inventory's engine, addresses and ports for the one that carries out.
    chosen = _chosen(load_plan(paths, EngineName(engine)) if engine else plan, jobs)
    carrier.deploy(chosen, fresh=fresh, say=click.echo)
    names = [job.name for job in chosen]
    if detach:
        option = f" --engine {engine}" if engine else ""
        click.echo(
            f"see them with `kit status{option}` and `kit logs -f{option}`, "
            f"end them with `kit stop{option}`"
        )
        return 0
    return _attend(carrier, names)


def _chosen(plan: Plan, names: Sequence[str]) -> list[JobPlan]:
    by_name = {job.name: job for job in plan.jobs}
    if not by_name:
        raise InputError("there are no jobs", "describe one in jobs/<name>.yaml")
    for name in names:
        if name not in by_name:
            raise InputError(f"there is no job {name}", nearest(name, by_name))
    return [by_name[name] for name in dict.fromkeys(names)] or list(by_name.values())


def _refuse_stale(root: Path, changes: Sequence[tree.Change]) -> None:
    if changes:
        raise InputError(
            f"{root} differs from the inventory and the jobs in {count(len(changes), 'file')} "
            f"({changes[0].path} for one)",
            "see the difference with `kit render --diff`, then run `kit render`",
        )


def _attend(engine: Engine, names: list[str]) -> int:
    with _stopping_on_signals(engine, names):
        follow(engine, names)
    ended = [status for status in engine.status() if status.job in names]
    for status in ended:
        report(status)
    return 1 if failed(ended) else 0


@contextmanager
def _stopping_on_signals(engine: Engine, names: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the jobs; what they print on their way out is still shown."""
    stopping = threading.Thread(target=_stop_all, args=(engine, names))

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.ident is None:
            click.echo("stopping, after a last checkpoint …", err=True)
            stopping.start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if stopping.ident is not None:
            stopping.join()


def _stop_all(engine: Engine, names: Sequence[str]) -> None:
    running = [s.job for s in engine.status() if s.job in names and s.state not in ENDED]
    for name in running:
        # A job that has just ended by itself is as stopped as one could wish.
        with contextlib.suppress(KitError):
            engine.stop(name)


def report(status: JobStatus) -> None:
    """Print how a job ended, where its checkpoint is, and what to do next."""
    click.echo(outcome(status))
    if status.checkpoint is not None:
        click.echo(f"checkpoint: {status.checkpoint}")
