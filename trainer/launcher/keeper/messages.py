"""Messages: a line of JSON each; a file's bytes follow their line."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from typing import Any

CONNECT = 5.0  # Seconds for a connection to another host.
SILENT = 30.0  # Seconds without a byte after which another host counts as dead.
LONGEST = 1 << 24  # Bytes of a message.
Endpoint = tuple[str, int]
TimedOut = asyncio.TimeoutError  # From Python 3.11 on, it is the built-in TimeoutError.


async def connect(endpoint: Endpoint) -> tuple[StreamReader, StreamWriter]:
    """Connect to another keeper; raises OSError."""
    try:
        opened = asyncio.open_connection(*endpoint, limit=LONGEST)
        return await asyncio.wait_for(opened, CONNECT)
    except TimedOut:
        raise OSError(f"no answer from {endpoint[0]} within {CONNECT:.0f} s") from None


async def send(writer: StreamWriter, message: object) -> None:
    """Send a message; raises OSError."""
    writer.write(json.dumps(message).encode() + b"\n")
    await drained(writer)


async def drained(writer: StreamWriter) -> None:
    """Wait until the other side receives the written bytes; raises OSError."""
    try:
        await asyncio.wait_for(writer.drain(), SILENT)
    except TimedOut:
        raise OSError(f"takes nothing for {SILENT:.0f} s") from None


async def receive(reader: StreamReader, seconds: float = SILENT) -> dict[str, Any]:
    """Receive a message; also raises OSError if the other side has ended or sends none."""
    try:
        line = await asyncio.wait_for(reader.readline(), seconds)
        found = json.loads(line) if line.endswith(b"\n") else None
    except TimedOut:
        raise OSError(f"says nothing for {seconds:.0f} s") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OSError("has ended its connection")
    return found
