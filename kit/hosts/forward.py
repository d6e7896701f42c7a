"""Forwarding of a port of this machine to a port of a container or a host."""

from __future__ import annotations

import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from kit.errors import InputError, KitError
from kit.hosts import relay, ssh
from kit.model import Host
from kit.values import Say

HERE = "127.0.0.1"
BLOCK = 2**16
POLL = 0.05
"""Seconds between two checks whether ssh listens."""
RELAY = Path(relay.__file__).read_text(encoding="utf-8")


def words(port: int) -> tuple[str, ...]:
    """Return the command that connects its input and output with a port of its container."""
    return ("python3", "-c", RELAY, str(port))


def serve(
    local: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Say,
    ready: Callable[[int], None],
) -> NoReturn:
    """Run the command for each connection to a port here, until interrupted; 0 is a free port.

    As in inetd(8), the connection is the command's standard input and output.

    Raises:
        InputError: The port is in use.
    """
    try:
        server = socket.create_server((HERE, local))
    except OSError as error:
        raise _in_use(local, error.strerror or str(error)) from None
    connections = _Connections(command, environment, say)
    with server:
        ready(server.getsockname()[1])
        try:
            while True:
                connections.add(server.accept()[0])
        finally:
            connections.end()


class _Connections:
    """The commands of open connections."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], say: Say) -> None:
        self._command = command
        self._environment = environment
        self._say = say
        self._open: set[subprocess.Popen[bytes]] = set()

    def add(self, connection: socket.socket) -> None:
        process = subprocess.Popen(
            self._command,
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # kit handles Ctrl-C, not its commands.
        )
        self._open.add(process)
        following = threading.Thread(target=self._follow, args=(process, connection), daemon=True)
        following.start()

    def _follow(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        with connection:
            said = process.communicate()[1].decode(errors="replace").strip()
            if process.returncode and process in self._open and not _is_gone(connection):
                reason = said.splitlines()[-1] if said else "the container ended"
                self._say(f"a connection failed: {reason}")
            self._open.discard(process)
            _close(connection)

    def end(self) -> None:
        ended, self._open = self._open, set()
        for process in ended:
            process.kill()


def _is_gone(connection: socket.socket) -> bool:
    """Whether the client has closed or reset its connection: then a command fails without fault."""
    poll = select.poll()
    poll.register(connection, 0)  # poll(2) reports POLLHUP and POLLERR always.
    return bool(poll.poll(0))


def _close(connection: socket.socket) -> None:
    """Pass the end on, and wait for the client's: input that is not read would be a reset."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(BLOCK):
            pass


def tunnel(host: Host, local: int, address: str, port: int, ready: Callable[[], None]) -> None:
    """Forward a port here to an address that a host reaches, by ssh, until it is interrupted.

    Raises:
        InputError: The port is in use.
        KitError: The host cannot be reached, or the connection is lost.
    """
    _require_free(local)
    where = f"[{address}]" if ":" in address else address
    ssh_command, *options = ssh.command(host.ssh)
    forward = ("-N", "-L", f"{HERE}:{local}:{where}:{port}", "-o", "ExitOnForwardFailure=yes")
    process = subprocess.Popen(
        [ssh_command, *forward, *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while process.poll() is None and not _listens(local):
            time.sleep(POLL)
        if process.poll() is None:
            ready()
        said = process.stderr.read().decode(errors="replace").strip()
        process.wait()
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()
    raise KitError(f"{host.name}: the connection ended: {said or 'ssh gave no reason'}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HERE, port)) == 0


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HERE, port))
        except OSError as error:
            raise _in_use(port, error.strerror or str(error)) from None


def _in_use(port: int, reason: str) -> InputError:
    what = f"port {port} of this machine cannot be opened: {reason}"
    return InputError(what, f"name another one, as in `{port % 60000 + 1000}:{port}`")
