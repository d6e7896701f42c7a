"""Limits what clients may hold: connections, time, and memory. Standard library only.

A connection waits for its client, which may send a head or a body, or take an answer; or its client
waits for the server. The first has a deadline, and where there is no room for another connection,
or for more of a body, the one that has waited longest for its client makes room.
"""

import resource
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

MOST = 1024  # Connections.
BACKLOG = 512  # Connections that are accepted in one go.
OWN = 64  # File descriptors for everything else.
MEMORY = 64 * 2**20  # Bytes of bodies and of answers at a time.
SMALL = 2**16  # Bytes of a connection that do not count: MOST bounds them.
HEAD, IDLE, BODY = 10.0, 30.0, 10.0  # Seconds for a head, without a request, between two parts.
RATE = 2**15  # Bytes a second that a body must have on the whole.
EVERY = 1.0  # Seconds between two looks for those that are late.


class Connection(Protocol):
    """What is limited."""

    def drop(self) -> None:
        """End it at once."""


class Connections:
    """All connections of a server."""

    def __init__(self, most: int, memory: int = MEMORY) -> None:
        self._most, self._memory = most, memory
        self._count = self._held = 0
        self._sizes = dict[Connection, int]()  # Bytes that count.
        self._waiting = dict[Connection, float]()  # Deadlines; who waits longest comes first.

    @property
    def held(self) -> int:
        """Bytes of bodies and answers."""
        return self._held

    def enter(self, connection: Connection) -> bool:
        """Add a connection; False where each of too many others is being answered."""
        self._count += 1
        if self._count > self._most and not self._drop(self._waiting):
            return False
        self.wait(connection, HEAD)
        return True

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._count -= 1
        self.hold(connection, 0)
        self._waiting.pop(connection, None)

    def wait(self, connection: Connection, seconds: float) -> None:
        """Note that it waits for its client from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = monotonic() + seconds

    def extend(self, connection: Connection, seconds: float) -> None:
        """Give a client that sends more time; its wait began no later for that."""
        if connection in self._waiting:
            self._waiting[connection] = monotonic() + seconds

    def answer(self, connection: Connection) -> None:
        """Note that its client waits for the server from now on."""
        self._waiting.pop(connection, None)

    def hold(self, connection: Connection, size: int) -> bool:
        """Note how many bytes it holds; False where there is no room for them."""
        counted = max(0, size - SMALL)
        self._held += counted - self._sizes.pop(connection, 0)
        if counted:
            self._sizes[connection] = counted
        while self._held > self._memory:
            if not self._drop(each for each in self._waiting if each in self._sizes):
                return False
        return True

    def drop_late(self) -> None:
        """Drop the connections whose deadline is over."""
        now = monotonic()
        for each in [each for each, due in self._waiting.items() if due < now]:
            self._drop([each])

    def _drop(self, candidates: Iterable[Connection]) -> bool:
        """Drop the first of some connections that wait; False where there is none."""
        found = next(iter(candidates), None)
        if found is None:
            return False
        self._waiting.pop(found, None)
        self.hold(found, 0)
        found.drop()
        return True


def most_connections() -> tuple[int, int]:
    """Return how many connections there may be, and how many accepted in one go.

    The limit of descriptors is raised as far as it is needed and may be. Without a descriptor for
    the next connection there would be none for /health either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + BACKLOG + OWN
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(8, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)) - OWN)
    backlog = min(BACKLOG, room // 4)
    return room - backlog, backlog
