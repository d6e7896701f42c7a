"""Limits the connections, time and memory that clients may use. Standard library only.

Either a connection waits for its client to send a head or a body or to receive an answer, or the
client waits for the server. The first kind of wait has a deadline. If a limit of connections or
memory is reached, the connection that has waited longest for its client is dropped:
its request, if there is one, gets an answer with the reason. uvicorn's `limit_concurrency` refuses
the newest connection instead, which helps an attacker.
"""

import resource
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

from trainer.serve.refusal import Refusal

MOST = 1024  # Connections.
BACKLOG = 512  # Connections that are accepted at a time.
OWN = 64  # Other file descriptors.
MEMORY = 64 * 2**20  # Bytes of bodies and of answers at a time.
SMALL = 2**16  # Bytes of a connection that are not counted, as MOST limits them.
HEAD, IDLE, BODY = 10.0, 30.0, 10.0  # Seconds for a head, without a request, between two parts.
RATE = 2**15  # Bytes a second that a body must have on average.
EVERY = 1.0  # Seconds between two checks for late connections.
LATE = ("the request came too slowly", "send it at once")
LARGE = ("too many large requests are answered already", "try again in a second")
CROWD = ("too many clients ask at once", "try again in a second")


class Connection(Protocol):
    """A connection with limits."""

    def drop(self, refusal: Refusal, *, at_once: bool = False) -> None:
        """End the connection, after a refusal if its request has no answer yet.

        The client can still read the refusal, unless the connection ends at once.
        """


class Connections:
    """All connections of a server."""

    def __init__(self, most: int, memory: int = MEMORY) -> None:
        self._most, self._memory = most, memory
        self._count = self._held = 0
        self._sizes = dict[Connection, int]()  # Counted bytes.
        self._waiting = dict[Connection, float]()  # Deadlines; the longest wait first.

    @property
    def held(self) -> int:
        """Bytes of all bodies and answers."""
        return self._held

    def enter(self, connection: Connection) -> bool:
        """Add a connection; return False if there are too many, and all are being answered."""
        self._count += 1
        if self._count > self._most and not self._drop(self._waiting, busy(CROWD), at_once=True):
            return False
        self.wait(connection, HEAD)
        return True

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._count -= 1
        self.hold(connection, 0)
        self._waiting.pop(connection, None)

    def wait(self, connection: Connection, seconds: float) -> None:
        """Record that a connection waits for its client from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = monotonic() + seconds

    def extend(self, connection: Connection, seconds: float) -> None:
        """Extend the deadline of a client that sends; keep the start of its wait."""
        if connection in self._waiting:
            self._waiting[connection] = monotonic() + seconds

    def answer(self, connection: Connection) -> None:
        """Record that a connection's client waits for the server from now on."""
        self._waiting.pop(connection, None)

    def hold(self, connection: Connection, size: int) -> bool:
        """Record the bytes that a connection holds; return False if they exceed the memory.

        This may drop other connections, or this one.
        """
        counted = max(0, size - SMALL)
        self._held += counted - self._sizes.pop(connection, 0)
        if counted:
            self._sizes[connection] = counted
        while self._held > self._memory:
            if not self._drop((each for each in self._waiting if each in self._sizes), busy(LARGE)):
                return False
        return True

    def drop_late(self) -> None:
        """Drop the connections that have exceeded their deadline."""
        now = monotonic()
        for each in [each for each, due in self._waiting.items() if due < now]:
            self._drop([each], Refusal(408, *LATE))

    def _drop(
        self, candidates: Iterable[Connection], refusal: Refusal, *, at_once: bool = False
    ) -> bool:
        """Drop the first of the waiting candidates; return False if there is none."""
        found = next(iter(candidates), None)
        if found is None:
            return False
        self._waiting.pop(found, None)
        self.hold(found, 0)
        found.drop(refusal, at_once=at_once)
        return True


def busy(why: tuple[str, str]) -> Refusal:
    """The refusal of a request that may succeed later."""
    return Refusal(429, *why, Retry_After="1")


def time_left(began: float, size: int) -> float:
    """Return the seconds for the next part of a body, after `size` bytes have arrived."""
    return min(BODY, began + BODY + size / RATE - monotonic())


def most_connections() -> tuple[int, int]:
    """Return the maximum of connections, and of those accepted at a time.

    Raise the limit of file descriptors for them, if this is allowed. If connections used all
    descriptors, /health would fail too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + BACKLOG + OWN
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(8, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)) - OWN)
    backlog = min(BACKLOG, room // 4)
    return room - backlog, backlog
