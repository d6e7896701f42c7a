"""The command line: one file a command, and the one place that prints errors."""

from __future__ import annotations

import gc
import importlib
import io
import sys

import click

from kit import __version__
from kit.errors import KitError, ProblemsError

COMMANDS = {
    "init": "init:command",
    "plan": "plan:command",
    "split": "split:command",
    "render": "render:command",
    "image": "image:command",
    "swarm": "swarm:command",
    "deploy": "deploy:command",
    "status": "status:command",
    "logs": "logs:command",
    "stop": "stop:command",
    "resume": "deploy:resume",
    "history": "history:command",
    "schema": "schema:command",
}
"""Each command's module below kit.commands, and its name there."""


class _Commands(click.Group):
    """Imports a command where it is used: the modules of all take longer than most commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(importlib.import_module(f"kit.commands.{module}"), name)
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kit")
def cli() -> None:
    """Multi-node GPU training on plain Docker.

    From inventory.yaml and jobs/*.yaml kit renders plain Compose and Swarm files and carries them
    out. Begin with `kit init my-cluster`.
    """


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
