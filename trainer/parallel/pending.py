"""Pending operations of gloo; their waits end when a peer is lost.

When a connection closes, gloo ends the waits for its messages, except for messages that were
received or sent in part: Pair::signalException of gloo/transport/tcp/pair.cc skips these.
Such a wait ends only by the group's timeout, so no rank waits for gloo directly.
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
    """Do nothing."""


def end_of(work: Any) -> Future[bool]:
    """Return a future for a point-to-point operation, for which gloo has none."""
    first: Future[None] = Future()
    end: Future[bool] = first.then(lambda _: bool(work.wait()))
    # The callback, which waits, runs in the thread that sets the result.
    threading.Thread(target=first.set_result, args=(None,), daemon=True).start()
    return end


class Pending:
    """The operations of one gloo group that this rank waits for."""

    def __init__(
        self, reach: Callable[[], None] = nothing, end: Callable[[], None] = nothing
    ) -> None:
        """`reach` is called before a wait for a collective, `end` when an operation completes."""
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
            if ends.acquire(blocking=False):  # Once: at the operation's end, or if it is given up.
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
        """End all waits, including those that begin later: the group is lost."""
        with self._lock:
            self._over = True
            waits = [*self._waits.values()]
        for end in waits:
            end()
