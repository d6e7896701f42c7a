"""Commands on the hosts through the user's ssh, for tasks beyond Docker's API."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress

from kit.addresses import split_login, ssh_words
from kit.errors import InputError, KitError
from kit.model import Host
from kit.values import Say

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10")
"""No password prompts, and timeouts for hosts that are down or die (ssh_config(5))."""
PATIENCE = 120.0
"""The most seconds of a command."""
FAILED = 255
"""ssh's exit status for its own failures (ssh(1))."""


class CommandError(KitError):
    """A command on a host failed with exit status `status`."""

    def __init__(self, where: str, status: int, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.status = status


def command(login: str, connect: int | None = None) -> list[str]:
    """Return the ssh command line for a login: `user@host` or `host`, optionally with `:port`.

    `connect` are the seconds to wait for a connection instead of the usual ones. An IPv6 address in
    brackets is converted, because ssh does not accept the brackets.
    """
    user, host, port = split_login(login)
    own = (f"ConnectTimeout={connect}",) if connect else ()  # ssh takes the first value.
    options = ["-T", *(word for option in (*own, *OPTIONS) for word in ("-o", option))]
    return ["ssh", *options, *(("-p", port) if port else ()), "--", user + host]


def commands(hosts: Iterable[Host], script: str) -> dict[str, list[str]]:
    """Return the command that runs a shell script on each host."""
    return {each.name: [*command(each.ssh), f"exec sh -c {shlex.quote(script)}"] for each in hosts}


def run(host: Host, script: str, content: bytes = b"", connect: int | None = None) -> str:
    """Run a script in the host's sh with `content` as standard input; return its output.

    Raises:
        KitError: The host cannot be reached, or takes too long.
        CommandError: The script failed.
    """
    try:
        done = subprocess.run(
            [*command(host.ssh, connect), f"exec sh -c {shlex.quote(script)}"],
            input=content,
            capture_output=True,
            timeout=PATIENCE,
            start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
            check=False,
        )
    except FileNotFoundError:
        raise not_installed() from None
    except subprocess.TimeoutExpired:
        raise _unreachable(host, f"no answer within {PATIENCE:.0f} s") from None
    stderr = done.stderr.decode(errors="replace").strip()
    if done.returncode == FAILED:
        raise _unreachable(host, stderr)
    if done.returncode:
        raise CommandError(host.name, done.returncode, stderr or f"exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def run_here(host: Host, script: str, content: bytes = b"") -> str:
    """Run a script in this machine's own sh, if this machine is the host; see `run`.

    Raises:
        CommandError: The script failed.
    """
    done = subprocess.run(["sh", "-c", script], input=content, capture_output=True, check=False)
    if done.returncode:
        stderr = done.stderr.decode(errors="replace").strip()
        raise CommandError(host.name, done.returncode, stderr or f"exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def stream(host: Host, script: str, content: bytes, say: Say, patience: float) -> int:
    """Run a script in the host's sh, pass each line of its output to `say`, return its exit status.

    `content` is the script's standard input, which it must read before it prints much.

    Raises:
        KitError: The host cannot be reached, or takes longer than `patience` seconds.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [*command(host.ssh), f"exec sh -c {shlex.quote(script)}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
            )
        except FileNotFoundError:
            raise not_installed() from None
        late = threading.Timer(patience, process.kill)
        late.start()
        try:
            _converse(process, content, say)
        finally:
            late.cancel()
            process.kill()
            status = process.wait()
        errors.seek(0)
        stderr = errors.read().decode(errors="replace").strip()
    if status < 0:
        raise _unreachable(host, f"no end within {patience:.0f} s")
    if status == FAILED:
        raise _unreachable(host, stderr)
    return status


def _converse(process: subprocess.Popen[bytes], content: bytes, say: Say) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # The exit status has the reason.
        process.stdin.write(content)
        process.stdin.close()
    for line in process.stdout:
        say(line.decode(errors="replace").rstrip("\n"))
    process.wait()


def not_installed() -> InputError:
    """Return the error for a machine without ssh."""
    return InputError("ssh is not installed here", "install openssh-client")


def host_key_error(name: str, login: str, stderr: str) -> KitError | None:
    """Return the error for a host whose key ssh does not accept, or None for other errors."""
    changed = "HOST IDENTIFICATION HAS CHANGED" in stderr
    if not changed and "Host key verification failed" not in stderr:
        return None
    _, host, port = split_login(login)
    known = f"'[{host}]:{port}'" if port else host
    connect = ssh_words(login)
    compare = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
    if changed:
        what = "its SSH host key has changed: it was reinstalled, or another machine answers"
        fix = (
            f"if `{compare}` on the host confirms the new key: `ssh-keygen -R {known}`, `{connect}`"
        )
    else:
        what = "its SSH host key is not known here"
        fix = f"run `{connect}`, compare the key with `{compare}` on the host, and accept it"
    return KitError(f"{name}: cannot be reached: {what}", fix)


def _unreachable(host: Host, stderr: str) -> KitError:
    if error := host_key_error(host.name, host.ssh, stderr):
        return error
    reason = stderr.splitlines()[-1] if stderr else "ssh gave no reason"
    return KitError(f"{host.name}: cannot be reached: {reason}", f"try `{ssh_words(host.ssh)}`")
