"""The command line: the list of commands, and the only place that prints errors."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import tempfile
import traceback
from typing import TextIO

import click

from kit import __version__
from kit.errors import SIGNALLED, KitError, ProblemsError, one_line

INTERNAL = 3
"""The exit status after an error in kit itself."""
LONGEST_FAULT = 300

COMMANDS = {
    "init": "init:command",
    "discover": "discover:command",
    "doctor": "doctor:command",
    "host": "host:command",
    "bench": "bench:command",
    "plan": "plan:command",
    "split": "split:command",
    "convert": "convert:command",
    "render": "render:command",
    "image": "image:command",
    "swarm": "swarm:command",
    "data": "data:command",
    "deploy": "deploy:command",
    "submit": "submit:submit",
    "queue": "queue:command",
    "cancel": "submit:cancel",
    "reclaim": "queue:reclaim",
    "lend": "queue:lend",
    "usage": "usage:command",
    "run": "run:command",
    "status": "status:command",
    "logs": "logs:command",
    "shell": "shell:command",
    "session": "session:command",
    "forward": "forward:command",
    "stop": "stop:command",
    "resume": "deploy:resume",
    "release": "release:command",
    "top": "top:command",
    "report": "report:command",
    "history": "history:command",
    "notify": "notify:command",
    "schema": "schema:command",
}
"""The module of each command in kit.commands, and the command's name in it."""


class _Commands(click.Group):
    """Imports a command on demand: importing all takes longer than most commands run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        loaded = getattr(importlib.import_module(f"kit.commands.{module}"), name)
        assert isinstance(loaded, click.Command)
        return loaded


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kit")
def cli() -> None:
    """Multi-node GPU training on plain Docker.

    From inventory.yaml and jobs/*.yaml kit renders plain Compose and Swarm files and runs
    them. Begin with `kit init my-cluster`.
    """


def main() -> int:
    """Run the command line; return 2 for a mistake in the input, 1 for a failure of the work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # The terminal may lack some characters.
            stream.reconfigure(errors="backslashreplace")
    if "_KIT_COMPLETE" in os.environ:  # A shell completion runs kit.
        cli.main(prog_name="kit")
    status = _run()
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            status = status or _unwritten(error)
            _discard(sys.stdout)
    return status


def _run() -> int:
    try:
        # `cli.main` would convert a broken pipe to SystemExit.
        with cli.make_context("kit", sys.argv[1:]) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort as error:
        click.echo("kit: interrupted", err=True)
        return _interrupted(error) or 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ProblemsError as error:
        click.echo(str(error), err=True)
        return _interrupted(error) or error.exit_status
    except KitError as error:
        click.echo(f"kit: {error}", err=True)
        return _interrupted(error) or error.exit_status
    except BrokenPipeError:
        return 1
    except SystemExit as error:
        # rich raises SystemExit on a broken pipe: `kit plan | head`.
        return 1 if isinstance(error.__context__, BrokenPipeError) else _fault()
    except OSError as error:
        # Errors about files name them; errors about the terminal, a pipe or a redirection do not.
        return _unwritten(error) if error.filename is None and error.errno in _FULL else _fault()
    except Exception:
        return _fault()
    return result if isinstance(result, int) else 0


def _interrupted(error: BaseException) -> int:
    """Return the exit status if a signal is the root cause of an error, as in cleanup; else 0."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return SIGNALLED + getattr(cause, "number", signal.SIGINT)
        cause = cause.__context__
    return 0


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}


def _unwritten(error: OSError) -> int:
    if not isinstance(error, BrokenPipeError):
        _say(f"kit: the output cannot be written: {error.strerror}")
    return 1


def _fault() -> int:
    """Report an unexpected exception, and write its traceback to a file."""
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    place = traceback.extract_tb(trace)[-1]
    what = " ".join(f"{kind.__name__}: {error}".split())[:LONGEST_FAULT]
    _say(f"kit: internal error: {what} ({place.filename}:{place.lineno})")
    with_file = ""
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="kit-error-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file,
    ):
        file.write(f"kit {__version__}, Python {sys.version}\n{traceback.format_exc()}")
        with_file = f", with {file.name}"
    _say(f"this is a bug in kit, not in your files: report it to kit's maintainers{with_file}")
    return _interrupted(error) or INTERNAL


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(one_line(text), err=True)


def _discard(stream: TextIO) -> None:
    """Prevent Python from flushing the stream at exit: it would fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
