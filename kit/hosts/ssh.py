"""Commands on the hosts through the user's ssh, for tasks beyond Docker's API."""

from __future__ import annotations

import shlex
import subprocess

from kit.errors import InputError, KitError
from kit.model import Host

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10")
"""No password prompts, and timeouts for hosts that are down or die (ssh_config(5))."""
PATIENCE = 120.0
"""The most seconds of a command."""
FAILED = 255
"""ssh's exit status for its own failures (ssh(1))."""


class CommandError(KitError):
    """A command on a host failed with exit status `status`."""

    def __init__(self, where: str, status: int, said: str) -> None:
        super().__init__(f"{where}: {said}")
        self.status = status


def command(login: str) -> list[str]:
    """Return the ssh command line for a login: `user@host` or `host`, optionally with `:port`.

    An IPv6 address in brackets is converted, because ssh does not accept the brackets.
    """
    user, at, host = login.rpartition("@")
    host, _, port = host.removeprefix("[").partition("]:" if host.startswith("[") else ":")
    place = f"{user}{at}{host.removesuffix(']')}"
    options = ["-T", *(word for option in OPTIONS for word in ("-o", option))]
    return ["ssh", *options, *(("-p", port) if port else ()), "--", place]


def run(host: Host, script: str, content: bytes = b"") -> str:
    """Run a script in the host's sh with `content` as standard input; return its output.

    Raises:
        KitError: The host cannot be reached, or takes too long.
        CommandError: The script failed.
    """
    try:
        done = subprocess.run(
            [*command(host.ssh), f"exec sh -c {shlex.quote(script)}"],
            input=content,
            capture_output=True,
            timeout=PATIENCE,
            start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
            check=False,
        )
    except FileNotFoundError:
        raise InputError("ssh is not installed here", "install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise _unreachable(host, f"no answer within {PATIENCE:.0f} s") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == FAILED:
        raise _unreachable(host, said.splitlines()[-1] if said else "ssh gave no reason")
    if done.returncode:
        raise CommandError(host.name, done.returncode, said or f"exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def _unreachable(host: Host, said: str) -> KitError:
    return KitError(f"{host.name}: cannot be reached: {said}", f"try `ssh {host.ssh}`")
