"""`kit stop`."""

from __future__ import annotations

import click

from kit.commands.deploy import report
from kit.commands.options import with_paths
from kit.commands.targets import target_for, with_engine
from kit.paths import Paths, identity
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
    help="Also end the servers and the data services of Compose and this machine.",
)
def command(paths: Paths, jobs: tuple[str, ...], engine: str | None, *, everything: bool) -> None:
    """End JOBS (default: all that run), after a last checkpoint.

    Servers continue, unless you name them (serve-NAME) or add --all. So do the data services; those
    of a Swarm end with `kit swarm down`.
    """
    cluster, own = identity(paths)
    target = target_for(engine or own, cluster, paths.tree(cluster))
    deployed = _deployed(target)
    servers = {name for name, kind in deployed.items() if kind is Kind.SERVER}
    ended = jobs or tuple(name for name in deployed if everything or name not in servers)
    for job in ended:
        status = target.stop(job)
        report(status)
        if status.kind is Kind.JOB and status.state is not State.COMPLETED:
            click.echo(f"`kit resume {job}` continues it")
    if everything and target.stop_data():
        click.echo("the data services have ended; `kit deploy` starts them with a job")
    left = [name for name in deployed if name in servers and name not in ended]
    if left and not jobs:
        click.echo(f"{', '.join(left)} continues: `kit stop {' '.join(left)}` ends it")
    elif not ended:
        click.echo("nothing is running")


def _deployed(target: Target) -> dict[str, Kind]:
    """Return the workloads that can be ended: local ones that run, remote ones with containers."""
    if target.tied_to_terminal:
        running = (status for status in target.status() if status.state not in ENDED)
        return {status.job: status.kind for status in running}
    return {name: known.kind for name, known in target.known().items()}
