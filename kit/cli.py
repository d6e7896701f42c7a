"""The command line: one file a command, and the one place that prints errors."""

from __future__ import annotations

import gc
import io
import sys

import click

from kit import __version__
from kit.commands import (
    deploy,
    history,
    image,
    init,
    logs,
    plan,
    render,
    schema,
    split,
    status,
    stop,
    swarm,
)
from kit.errors import KitError, ProblemsError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kit")
def cli() -> None:
    """Multi-node GPU training on plain Docker.

    From inventory.yaml and jobs/*.yaml kit renders plain Compose and Swarm files and carries them
    out. Begin with `kit init my-cluster`.
    """


for _command in (
    init.command,
    plan.command,
    split.command,
    render.command,
    image.command,
    swarm.command,
    deploy.command,
    status.command,
    logs.command,
    stop.command,
    deploy.resume,
    history.command,
    schema.command,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line; exit with 2 for a mistake in the input, 1 for a failure of the work."""
    # A big inventory is a million small objects that live to the end: a third of the time of
    # `kit render` for 1,000 hosts went into looking for garbage among them.
    gc.set_threshold(200_000, 20, 20)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    try:
        result = cli.main(prog_name="kit", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("kit: interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ProblemsError as error:
        click.echo(str(error), err=True)
        return error.exit_status
    except KitError as error:
        click.echo(f"kit: {error}", err=True)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0
