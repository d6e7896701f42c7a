"""Forwarding of a port of this machine to a port of a container or a host."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kit.errors import InputError, KitError
from kit.hosts import relay, ssh
from kit.model import Host
from kit.values import Say

HERE = "127.0.0.1"
BLOCK = 2**16
POLL = 0.05
"""Seconds between two checks whether ssh listens."""
TERMINATED = 2.0
"""Seconds for a command to end on SIGTERM."""
RELAY = Path(relay.__file__).read_text(encoding="utf-8")


def words(port: int) -> tuple[str, ...]:
    """Return the command that connects its input and output with a port of its container."""
    return ("python3", "-c", RELAY, str(port))


async def serve(
    local: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Say,
    ready: Callable[[int], None],
) -> None:
    """Run the command for each connection to a port here, until cancelled; 0 is a free port.

    Raises:
        InputError: The port is in use.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _relay(command, environment, reader, writer, say)
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(connected, HERE, local)
    except OSError as error:
        raise _in_use(local, error.strerror or str(error)) from None
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()


async def _relay(
    command: Sequence[str],
    environment: Mapping[str, str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    say: Say,
) -> None:
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    sending = asyncio.create_task(_copy(reader, process.stdin))
    errors = asyncio.create_task(process.stderr.read())
    try:
        if await _copy(process.stdout, writer) and await process.wait():
            said = (await errors).decode(errors="replace").strip()
            say(f"a connection failed: {said.splitlines()[-1] if said else 'the container ended'}")
    finally:
        sending.cancel()
        errors.cancel()
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command; docker's does not always end on SIGTERM while a connection is open."""
    with suppress(ProcessLookupError):
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), TERMINATED)
            return
        process.kill()
    await process.wait()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> bool:
    """Copy until the end of the input and pass the end on; return False if a side closes before."""
    try:
        while block := await source.read(BLOCK):
            target.write(block)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
    except OSError:
        return False
    return True


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
