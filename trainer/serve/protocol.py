"""uvicorn's HTTP connections, with limits."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from http import HTTPStatus
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainer.serve.connections import HEAD, IDLE, Connections, time_left
from trainer.serve.refusal import Refusal

PIECE = 2**14  # Bytes that are parsed at a time.
WASTE = 2**15  # Bytes of a request besides its body, such as headers of tiny chunks.
LINGER = 30.0  # Seconds for the rest of a request that is already answered.


class Transport:
    """A wrapper of asyncio's transport; the connection decides how to close it."""

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self.asyncio = transport
        self.close = close
        self.lingers = False

    def is_closing(self) -> bool:
        """Whether no more data can be written."""
        return self.lingers or bool(self.asyncio.is_closing())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.asyncio, name)


class LimitedConnection(H11Protocol):
    """A connection that records when it waits for its client.

    A request may be answered before all of its body has arrived. If the connection was closed then,
    the kernel would reset it, and the client, which still sends, would lose the answer. So it
    lingers, as nginx's `lingering_close`: its sending side is closed, and input is dropped until
    the client closes the connection too. Reading the body first would waste time on unused bodies,
    and a client with `Expect: 100-continue` would send them.
    """

    transport: Any
    refusal: Refusal | None = None  # The application must answer its request with this.

    def __init__(self, limits: Connections, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        self._asks = False  # Whether a request has begun, but not its answer.
        self._received = 0  # Bytes since the request began.
        self.taken = 0  # Bytes of its body that the application has read.
        self._closed = 0.0  # Time at which it began to linger.
        self._dropped = 0  # Bytes that it has received since then.

    @property
    def incomplete(self) -> bool:
        """Whether the body of the present request has not arrived completely."""
        return bool(self.cycle and self.cycle.more_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection."""
        own: Any = Transport(transport, self._close)
        super().connection_made(own)
        if not self.limits.enter(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self.limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process a part of a request; the application gets this connection from CONNECTION."""
        if self.transport.lingers:
            self._dropped += len(data)
            return self.limits.extend(self, self._left())
        if not self._asks and (self.cycle is None or self.cycle.response_complete):
            self._asks = True
            self.limits.wait(self, HEAD)
        CONNECTION.set(self)
        for start in range(0, len(data), PIECE):
            if self.refusal or self.transport.is_closing():
                return None
            piece = data[start : start + PIECE]
            self._received += len(piece)
            super().data_received(piece)
            if self._wasteful():
                what, fix = "the body comes in tiny pieces", "send it in larger ones"
                self.drop(Refusal(400, what, fix))
        return None

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP."""
        self._asks = True
        fix = f"send HTTP/1.1, with a head of {self.config.h11_max_incomplete_event_size} bytes"
        self.drop(Refusal(400, msg.removesuffix("."), f"{fix} at most"))

    def _wasteful(self) -> bool:
        """Whether the overhead of an incomplete body is too large."""
        if not self.incomplete:
            return False
        content = self.taken + len(self.cycle.body)
        return self._received - content > WASTE + content

    def finish(self) -> None:
        """Wait until the client has received the answer, and for its next request."""
        if self not in self.connections:  # The client has disconnected.
            return self.limits.answer(self)
        self._asks, self._received, self.taken, self.refusal = False, 0, 0, None
        self.limits.hold(self, self.transport.get_write_buffer_size())
        self.limits.wait(self, self._left() if self.transport.lingers else IDLE)
        return None

    def drop(self, refusal: Refusal, *, at_once: bool = False) -> None:
        """Answer a request that has no answer yet with a refusal, and end the connection."""
        busy = self.cycle is not None and not self.cycle.response_complete
        asks = not self.cycle.response_started if busy else self._asks
        if not asks or self.transport.is_closing():
            self.transport.abort()
        elif busy and not at_once:
            self.refusal = refusal
            self.cycle.message_event.set()  # The application waits for more of the body.
        else:
            self.transport.write(written(refusal))
            if at_once:
                self.transport.abort()
            else:
                self._linger()

    def _close(self) -> None:
        """Close the connection; it lingers if the client still sends."""
        state, (trailing, _) = self.conn.their_state, self.conn.trailing_data
        sends = state in (h11.SEND_BODY, h11.ERROR) or (trailing and state is not h11.IDLE)
        if self not in self.connections or not (sends or self.transport.lingers):
            self.transport.asyncio.close()
        elif not self.transport.lingers:
            self._linger()

    def _linger(self) -> None:
        """Close the sending side, and drop further input."""
        self.transport.lingers, self._closed = True, monotonic()
        with suppress(OSError):  # The client has reset it.
            self.transport.write_eof()
        self.flow.resume_reading()
        self.limits.wait(self, self._left())

    def _left(self) -> float:
        """The seconds that a lingering connection may wait for its client."""
        left = self._closed + LINGER - monotonic()
        return min(left, time_left(self._closed, self._dropped))


def written(refusal: Refusal) -> bytes:
    """Return the bytes of a refusal for a request whose incomplete head no application has."""
    content = json.dumps({"error": refusal.error, "fix": refusal.fix}).encode()
    headers = {
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": len(content),
        **refusal.headers,
    }
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


CONNECTION: ContextVar[LimitedConnection] = ContextVar("connection")
