"""Lets inference servers read this host's checkpoints: python3 -m trainer.serve.checkpoints.

    GET /checkpoints                 a list of the complete ones: name, step, accuracy, host,
                                     time of writing, files with sizes, and the values of the
                                     manifest that a server needs for its choice
    GET /checkpoints/<name>/<file>   manifest.json or state.pt
    GET /health                      200

    KIT_CHECKPOINTS        the folder; default: /checkpoints
    KIT_CHECKPOINT_PORT    default: 8081
    KIT_CHECKPOINT_TOKEN   name of the secret with the token or the cluster's key, which clients
                           need except at /health; default: none
    KIT_HOST               as for the server (config.py)
    KIT_ADDRESS            names or addresses, separated by commas: it listens at this host's
                           one; default: 0.0.0.0, on all interfaces

Standard library only, some 20 MB of memory, and no writes. A checkpoint that is pruned while a
client reads it stays readable for that client, as its files are open.
"""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from trainer.checkpoints.layout import COMPLETE, MANIFEST, NAME, STATE
from trainer.checkpoints.listing import Found, Listing, open_file
from trainer.checkpoints.manifest import TEXT
from trainer.contract.bearer import read_token
from trainer.launcher.network import own_address
from trainer.launcher.process import stay_unprivileged
from trainer.serve.connections import BODY, EVERY, Connections, most_connections
from trainer.serve.names import allowed_host
from trainer.serve.refusal import Refusal

FILE = re.compile(rf"/checkpoints/({NAME})/({re.escape(MANIFEST)}|{re.escape(STATE)})")
HEADERS = 2**14  # Bytes of a request's head.
CHUNK = 2**22  # Bytes of a file that are sent at a time.
PATIENCE = 30  # Seconds for a client to receive a chunk.


def described(found: Found, host: str) -> dict[str, Any]:
    """Describe a checkpoint to a server, only by the checked part of its manifest."""
    manifest = found.manifest
    size = manifest.size
    return {
        "name": found.name,
        "step": manifest.step,
        "accuracy": manifest.accuracy,
        "host": host,
        "written": found.written,  # Seconds since 1970.
        "manifest": {
            "step": manifest.step,
            "epoch": manifest.epoch,
            "accuracy": manifest.accuracy,
            "validation_loss": manifest.loss,
            "job": {"name": manifest.job, "dataset": TEXT if manifest.text else ""},
            "files": {STATE: {"bytes": size, "sha256": manifest.sha256}},
        },
        "files": {STATE: size},
    }


class Connection:
    """A connection of the endpoint."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def drop(self, _: Refusal, *, at_once: bool = False) -> None:  # noqa: ARG002
        """End it at once: the clients are servers, which try again."""
        self.writer.transport.abort()


class Endpoint:
    """Answers one request of each connection."""

    def __init__(self, folder: Path, host: str, token: bytes | None, limits: Connections) -> None:
        self.folder, self.host = folder, host
        self._token, self._limits = token, limits
        self._listing, self._lock = Listing(folder), asyncio.Lock()

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until its client fails."""
        connection = Connection(reader, writer)
        with suppress(OSError, EOFError, asyncio.LimitOverrunError):
            try:
                if self._limits.enter(connection):
                    await self._answer(connection)
                    # The client has received the answer, or is too slow.
                    await writer.drain()
                    await linger(reader, writer)
                    writer.close()
                    await writer.wait_closed()
            finally:
                self._limits.leave(connection)
                writer.transport.abort()

    async def _answer(self, connection: Connection) -> None:
        head = (await connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self._limits.answer(connection)
        first, *lines = head.splitlines()
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        method, path, *_ = [*first.split(" "), "", ""]
        if refused := self._refused(method, path, headers):
            return self._send_json(connection, method, *refused)
        if path == "/health":
            return self._send_json(connection, method, 200, {"status": "ok"})
        if path == "/checkpoints":
            async with self._lock:  # One request at a time reads manifests.
                found, _ = await asyncio.to_thread(self._listing.look)
            listed = [described(each, self.host) for each in found]
            return self._send_json(connection, method, 200, listed)
        try:
            stream = await asyncio.to_thread(find, self.folder, path)
        except OSError:
            missing = {"error": "not found", "fix": "see /checkpoints"}
            return self._send_json(connection, method, 404, missing)
        with stream:
            await self._send_file(connection, method, stream)
        return None

    def _refused(
        self, method: str, path: str, headers: dict[str, str]
    ) -> tuple[int, dict[str, str]] | None:
        """Status and text of the refusal of a request; None if it is allowed."""
        if method not in ("GET", "HEAD"):
            return 405, {"error": f"{method[:20]} is not answered", "fix": "send GET"}
        host = headers.get("host", "")
        if host and not allowed_host(host, ()):
            what = f"the host name {host[:100]} is not allowed"
            return 403, {"error": what, "fix": "use the address of this host"}
        kind, _, given = headers.get("authorization", "").partition(" ")
        right = self._token is None or secrets.compare_digest(given.encode(), self._token)
        if path != "/health" and not (right and (self._token is None or kind == "Bearer")):
            fix = (
                "send the header Authorization: Bearer and the server's token or the cluster's key"
            )
            return 401, {"error": "the token is missing or wrong", "fix": fix}
        return None

    def _send_json(self, connection: Connection, method: str, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        send_head(connection, status, "application/json", len(body))
        self._limits.wait(connection, PATIENCE)
        if method != "HEAD" and self._limits.hold(connection, len(body)):
            connection.writer.write(body)

    async def _send_file(self, connection: Connection, method: str, stream: BinaryIO) -> None:
        size, loop = os.fstat(stream.fileno()).st_size, asyncio.get_running_loop()
        send_head(connection, 200, "application/octet-stream", size)
        for start in range(0, size if method != "HEAD" else 0, CHUNK):
            self._limits.wait(connection, PATIENCE)
            count = min(CHUNK, size - start)
            await loop.sendfile(connection.writer.transport, stream, start, count)


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the answer, and drop further input of the client, which might lose it otherwise."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY):
            while await reader.read(HEADERS):
                pass


def find(folder: Path, path: str) -> BinaryIO:
    """Open a file of a complete checkpoint; raises OSError if there is none."""
    if not (parts := FILE.fullmatch(path)):
        raise FileNotFoundError(path)
    name, file = parts.groups()
    open_file(folder / name, COMPLETE).close()
    return open_file(folder / name, file)


def send_head(connection: Connection, status: int, kind: str, size: int) -> None:
    """Send an answer's head."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {size}\r\nConnection: close\r\n\r\n"
    )
    connection.writer.write(head.encode())


async def serve(endpoint: Endpoint, limits: Connections, address: tuple[str, int]) -> None:
    """Serve until SIGTERM or SIGINT ends the process."""
    _, backlog = most_connections()
    begun = asyncio.start_server(endpoint.visit, *address, limit=HEADERS, backlog=backlog)
    async with await begun:
        sys.stdout.write(f"serve {endpoint.host}: offers the checkpoints in {endpoint.folder} ")
        sys.stdout.write(f"on port {address[1]}\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(EVERY)
            limits.drop_late()


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    text = os.environ.get("KIT_CHECKPOINT_PORT") or "8081"
    folder = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")

    def fail(reason: str, code: int) -> int:
        sys.stderr.write(f"serve {host}: error: {reason}\n")
        return code

    def end(number: int, _: object) -> None:
        sys.stdout.write(f"serve {host}: ends on {signal.Signals(number).name}\n")
        sys.stdout.flush()
        os._exit(0)  # Without waiting for slow clients or a hung disk.

    if not text.isdecimal() or not 0 < int(text) < 65536:
        return fail(f'KIT_CHECKPOINT_PORT must be a port, is "{text}"', 2)
    stay_unprivileged()
    limits = Connections(most_connections()[0] // 2)  # Each may also have a file open.
    try:
        token = read_token(os.environ.get("KIT_CHECKPOINT_TOKEN"), os.environ)
    except ValueError as error:
        return fail(str(error), 2)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    endpoint = Endpoint(folder, host, token, limits)
    try:
        address = own_address((os.environ.get("KIT_ADDRESS") or "0.0.0.0").split(","))
        asyncio.run(serve(endpoint, limits, (address, int(text))))
    except OSError as error:
        return fail(
            f"port {text}: {error.strerror}; end what uses it, or set KIT_CHECKPOINT_PORT", 1
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
