"""Reads from a source over HTTP, with limits of time, size and memory."""

import asyncio
from asyncio import StreamReader, StreamWriter, Timeout

import h11

from trainer.checkpoints.manifest import shown

PATIENCE = 20.0  # Seconds for an answer; a large one has more time, by RATE.
RATE = 2**19  # Bytes a second.
CHUNK = 2**20  # Bytes read at a time.
HEAD = 2**14  # Bytes of an answer's head.

Address = tuple[str, int]


class SourceError(Exception):
    """A source has not answered correctly; it may do so later."""


class LengthError(SourceError):
    """An answer was not read, as it is longer than allowed."""


async def get(address: Address, path: str, most: int, token: bytes | None) -> bytearray:
    """Return the content at a path, at most `most` bytes; raises SourceError."""
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE) as deadline:
            reader, writer = await asyncio.open_connection(*address, limit=CHUNK)
            try:
                await _read(reader, writer, _request(address, path, token), content, most, deadline)
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        # Omit figures, which would differ each time: equal warnings are printed once.
        raise SourceError(f"its answer to {path} is not complete in time") from error
    except OSError as error:
        raise SourceError(f"it cannot be reached ({error.strerror or error})") from error
    except h11.ProtocolError as error:
        raise SourceError(f"its answer is no HTTP ({shown(str(error))})") from error
    return content


def _request(address: Address, path: str, token: bytes | None) -> h11.Request:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    headers = [
        (b"Host", f"{host}:{address[1]}".encode()),
        (b"Accept-Encoding", b"identity"),
        (b"Connection", b"close"),
    ]
    if token:
        headers.append((b"Authorization", b"Bearer " + token))
    return h11.Request(method="GET", target=path, headers=headers)


async def _read(
    reader: StreamReader,
    writer: StreamWriter,
    request: h11.Request,
    content: bytearray,
    most: int,
    deadline: Timeout,
) -> None:
    """Send a request and read the answer's body into `content`."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
    writer.write(b"".join(connection.send(each) or b"" for each in (request, h11.EndOfMessage())))
    began = asyncio.get_running_loop().time()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK))
        elif isinstance(event, h11.Response):
            _check_head(event, request.target.decode(), most)
        elif isinstance(event, h11.Data):
            content += event.data
            deadline.reschedule(began + PATIENCE + len(content) / RATE)
        elif isinstance(event, h11.EndOfMessage):
            return


def _check_head(head: h11.Response, path: str, most: int) -> None:
    """Raise SourceError unless an uncompressed body of allowed length follows."""
    headers = {name: value.decode("latin-1") for name, value in head.headers}
    if head.status_code != 200:
        raise SourceError(f"it answers {head.status_code} to {path}")
    if (encoding := headers.get(b"content-encoding", "identity")) != "identity":
        raise SourceError(f"it has encoded {path}, as {shown(encoding)}")
    # A chunked body has no length in advance, and tiny chunks would take much time.
    if (length := headers.get(b"content-length")) is None:
        raise SourceError(f"it does not say how long {path} is")
    if int(length) > most:
        raise LengthError(f"{path} has {length} bytes, {most} at most are read")
