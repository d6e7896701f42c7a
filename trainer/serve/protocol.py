"""uvicorn's HTTP connections, with limits."""

import asyncio
from contextvars import ContextVar
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from trainer.serve.connections import HEAD, IDLE, Connections

CONTENT = b'{"error": "the request came too slowly, or in tiny pieces", "fix": "send it at once"}'
DROPPED = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(CONTENT), CONTENT)
)
PIECE = 2**14  # Bytes that are parsed at a time.
WASTE = 2**15  # Bytes of a request besides its body, as headers of tiny chunks: they cost time.


class LimitedConnection(H11Protocol):
    """A connection that records when it waits for its client."""

    def __init__(self, limits: Connections, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        self._asks = False  # A request has begun, but not its answer.
        self._received = 0  # Bytes since the request began.
        self.taken = 0  # Bytes of its body that the application has read.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection."""
        super().connection_made(transport)
        if not self.limits.enter(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self.limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process a part of a request; its application finds this connection in CONNECTION."""
        if not self._asks and (self.cycle is None or self.cycle.response_complete):
            self._asks = True
            self.limits.wait(self, HEAD)
        CONNECTION.set(self)
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._received += len(piece)
            super().data_received(piece)
            if self._wasteful():
                return self.drop()
        return None

    def _wasteful(self) -> bool:
        """Whether much more than the content of an incomplete body has arrived."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.more_body:
            return False
        content = self.taken + len(self.cycle.body)
        return self._received - content > WASTE + content

    def finish(self) -> None:
        """Wait until the client has received the answer, and for its next request."""
        self._asks, self._received, self.taken = False, 0, 0
        self.limits.hold(self, self.transport.get_write_buffer_size())
        self.limits.wait(self, IDLE)

    def drop(self) -> None:
        """End it at once."""
        if self._asks and not self.transport.is_closing():
            self.transport.write(DROPPED)
        self.transport.abort()


CONNECTION: ContextVar[LimitedConnection] = ContextVar("connection")
