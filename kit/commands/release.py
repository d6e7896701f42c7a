"""`kit release`."""

from __future__ import annotations

import click

from kit.commands.options import with_paths
from kit.commands.targets import target_of, with_engine
from kit.errors import KitError
from kit.paths import Paths


@click.command("release", short_help="Take back hosts that a training has left out.")
@click.argument("hosts", nargs=-1)
@with_paths
@with_engine
def command(paths: Paths, hosts: tuple[str, ...], engine: str | None) -> None:
    """Take back HOSTS (default: all) that trainings have left out because of their failures.

    `kit status` shows these hosts, and why. Their failures no longer count.
    """
    target = target_of(paths, engine)
    left_out = [
        (status.job, host.host)
        for status in target.status()
        for host in status.hosts
        if host.left_out and (not hosts or host.host in hosts)
    ]
    if unknown := sorted({*hosts} - {host for _, host in left_out}):
        raise KitError(f"{', '.join(unknown)}: no training leaves it out", "see `kit status`")
    for job, host in left_out:
        target.release(job, host)
        click.echo(f"{job}: {host} is released")
    if not left_out:
        click.echo("no host is left out")
