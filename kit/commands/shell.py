"""`kit shell`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from kit.commands.options import with_paths
from kit.commands.targets import target_of, with_engine
from kit.errors import KitError
from kit.hosts.environment import clean
from kit.paths import Paths
from kit.runtime.access import chosen_host
from trainer.contract.code import UNPACKED, WORKSPACE

IN_THE_CODE = f"""\
for each in {WORKSPACE} "/tmp/workspace-$(id -u)" "$KIT_WORKSPACE"; do
    [ -f "$each/{UNPACKED}" ] && cd "$each"
done
"""
"""Goes to the folder of the job's code, if it has one (trainer/launcher/workspace.py)."""
SHELL = 'exec "$(command -v bash || command -v sh)"'


@click.command(
    "shell",
    short_help="Open a shell beside a rank, or run a command there.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.argument("job")
@with_paths
@with_engine
@click.option("--host", help="Its container on this host.")
@click.option("--rank", type=int, help="The container of this rank.  [default: 0]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    job: str,
    paths: Paths,
    engine: str | None,
    *,
    host: str | None,
    rank: int | None,
    command: tuple[str, ...],
) -> int:
    """Open a shell in the container of JOB, or run a command: `kit shell JOB -- nvidia-smi`.

    It has the container's user, GPUs, folders and variables; the exit status is that of the
    command. A server has the name of its stack, serve-NAME.
    """
    target = target_of(paths, engine)
    chosen = chosen_host(target.status(), job, host, rank)
    access = target.access(job, chosen.host)
    if access.folder is not None and not Path(access.folder).is_dir():
        raise KitError(f"{job}: its code is not there yet", "try again in a moment")
    script = IN_THE_CODE + ('exec "$@"' if command else SHELL)
    words = ("sh", "-c", script, "sh", *command)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and not command:
        click.echo(f"{job} on {chosen.host}; `exit` leaves it as it is", err=True)
    return subprocess.run(
        access.command(words, terminal=terminal),
        env={**(clean(os.environ) if access.container else os.environ), **access.environment},
        cwd=access.folder,
        check=False,
    ).returncode
