"""`kit stop`."""

from __future__ import annotations

from collections.abc import Collection

import click

from kit.commands.options import with_paths
from kit.commands.session_access import sessions_of
from kit.commands.targets import target_of, with_engine
from kit.commands.to_the_end import report
from kit.errors import InputError
from kit.paths import Paths
from kit.queue.record import going
from kit.runtime.status import ENDED, State
from kit.runtime.target import Target
from kit.workload.types import Kind


@click.command("stop", short_help="End jobs, after a last checkpoint.")
@click.argument("jobs", nargs=-1)
@with_paths
@with_engine
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also end the servers, sessions, and the data services of Compose and this machine.",
)
def command(paths: Paths, jobs: tuple[str, ...], engine: str | None, *, everything: bool) -> None:
    """End JOBS (default: all that run), after a last checkpoint.

    Servers and sessions continue, unless you name them (a server is serve-NAME) or add --all. The
    data services continue too; on a Swarm, `kit swarm down` ends them. `kit cancel` ends jobs of
    the queue.
    """
    target = target_of(paths, engine)
    deployed, sessions, queued = _deployed(target), set[str](), _queued(target)
    for name in jobs:
        if name in queued:
            raise InputError(f"job {name} is in the queue", f"end it: `kit cancel {name}`")
    if deployed and not (jobs or target.tied_to_terminal):
        sessions = sessions_of(paths, target.status()) & deployed.keys()
    servers = {name for name, kind in deployed.items() if kind is Kind.SERVER}
    stays = set() if everything else servers | sessions
    ended = jobs or tuple(name for name in deployed if name not in {*stays, *queued})
    for job in ended:
        _stop(target, job)
    if everything and target.stop_data():
        click.echo("the data services have ended; `kit deploy` starts them with a job")
    left = [name for name in deployed if name in stays and name not in ended]
    if left and not jobs:
        click.echo(f"{', '.join(left)} continues: `kit stop {' '.join(left)}` ends it")
    elif queued and not jobs:
        click.echo(f"{', '.join(queued)}: in the queue; `kit cancel` ends them")
    elif not ended:
        click.echo("nothing is running")


def _queued(target: Target) -> Collection[str]:
    """Return the jobs of the queue."""
    queue = target.queue()
    return going(queue.records()) if queue else ()


def _stop(target: Target, name: str) -> None:
    status = target.stop(name)
    report(status)
    if status.session:
        click.echo(f"`kit deploy {name}` starts the session again; its home stays")
    elif status.kind is Kind.JOB and status.state is not State.COMPLETED:
        click.echo(f"`kit resume {name}` continues it")


def _deployed(target: Target) -> dict[str, Kind]:
    """Return the workloads that can be ended: local ones that run, remote ones with containers."""
    if target.tied_to_terminal:
        running = (status for status in target.status() if status.state not in ENDED)
        return {status.job: status.kind for status in running}
    return {name: known.kind for name, known in target.known().items()}
