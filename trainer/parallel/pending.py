"""Exchanges that a rank waits for, and the end of these waits when a peer is lost.

When a connection ends, gloo informs those who wait for a message, except for the messages that had
arrived or were sent in part: Pair::signalException of gloo/transport/tcp/pair.cc skips these.
Such a wait ends only by the group's timeout, so no rank waits for gloo itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch.futures import Future

T = TypeVar("T")

GIVEN_UP = "the exchange was given up"
"""In the message of the error that ends a wait."""


def nothing() -> None:
    """Take no note."""


def end_of(work: Any) -> Future[bool]:
    """Return the end of a message between two ranks, for which gloo has no future."""
    first: Future[None] = Future()
    end: Future[bool] = first.then(lambda _: bool(work.wait()))
    # The callback, which waits, runs in the thread that sets the result.
    threading.Thread(target=first.set_result, args=(None,), daemon=True).start()
    return end


class Pending:
    """The exchanges of one group, by gloo, that this rank waits for."""

    def __init__(
        self, reach: Callable[[], None] = nothing, end: Callable[[], None] = nothing
    ) -> None:
        """Call `reach` with an exchange of all ranks before this one waits, `end` with its end."""
        self.reach, self._end = reach, end
        self._lock = threading.Lock()
        self._waits: dict[Future[Any], Callable[[], None]] = {}
        self._over = False

    @property
    def over(self) -> bool:
        """Whether the group is lost."""
        with self._lock:
            return self._over

    @property
    def unfinished(self) -> bool:
        """Whether a thread of gloo still waits."""
        with self._lock:
            return bool(self._waits)

    def guard(self, future: Future[T]) -> Future[T]:
        """Return a future with the same result, or with a RuntimeError once this is given up."""
        first: Future[None] = Future()
        ends = threading.Lock()

        def end() -> None:
            if ends.acquire(blocking=False):  # The exchange ends, or is given up: once.
                first.set_result(None)

        def arrive(_: Future[T]) -> None:
            with self._lock:
                self._waits.pop(future, None)
                self._end()
            end()

        def result(_: Future[None]) -> T:
            if not future.done():
                raise RuntimeError(GIVEN_UP)
            return future.value()

        guarded = first.then(result)
        with self._lock:
            self._waits[future] = end
            over = self._over
        future.add_done_callback(arrive)
        if over:
            end()
        return guarded

    def give_up(self) -> None:
        """End all waits, also those that begin later: the group is lost."""
        with self._lock:
            self._over = True
            waits = [*self._waits.values()]
        for end in waits:
            end()
