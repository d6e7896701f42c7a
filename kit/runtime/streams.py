"""Docker's log streams: frames, time stamps, and merging of several streams by time.

GET /containers/<id>/logs and /services/<id>/logs answer with frames unless there is a terminal:
1 byte for the stream (1: standard output, 2: error, 3: messages of the engine), 3 empty bytes, 4
with the size (big-endian), then the content. One frame is one line; with `timestamps=1` it begins
with a time stamp (RFC 3339, in nanoseconds) and a space. Lines of more than 16 KiB are split into
several frames; the last one ends with a newline.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

T = TypeVar("T")

HEADER = struct.Struct(">BxxxL")
STANDARD_ERROR, ENGINE = 2, 3
WINDOW = 0.5
"""Seconds that a line waits for earlier lines of silent sources."""


class Readable(Protocol):
    """A response that is read in parts, such as http.client's."""

    def read(self, amount: int, /) -> bytes:
        """Return `amount` bytes, or fewer at the end."""


def frames(response: Readable) -> Iterator[tuple[bool, bytes]]:
    """Yield each frame: whether it is standard error, and its content.

    A stream that breaks off within a frame ends with the frame before.
    """
    while len(head := response.read(HEADER.size)) == HEADER.size:
        kind, size = HEADER.unpack(head)
        content = response.read(size)
        if len(content) < size:
            return
        if kind != ENGINE:  # For example a node that is down; the status reports it.
            yield kind == STANDARD_ERROR, content


def seconds(stamp: str) -> float:
    """Return the seconds since the epoch of a time stamp: RFC 3339, in UTC, with nanoseconds."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def stamped(line: bytes) -> tuple[float, str]:
    """Split a line into its time stamp, in seconds since the epoch, and its text."""
    stamp, _, text = line.partition(b" ")
    return seconds(stamp.decode("ascii")), text.decode(errors="replace").rstrip("\r\n")


def lines(response: Readable) -> Iterator[tuple[float, str]]:
    """Yield time and text of each line of a response with time stamps; join split lines."""
    begun: dict[bool, tuple[float, str]] = {}
    for error, content in frames(response):
        moment, text = stamped(content)
        first, before = begun.pop(error, (moment, ""))
        if content.endswith(b"\n"):
            yield first, before + text
        else:
            begun[error] = first, before + text
    yield from begun.values()


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a source, with its error."""

    error: Exception | None = None


def merged(
    sources: Iterable[Iterator[T]], key: Callable[[T], float], window: float | None = WINDOW
) -> Iterator[T]:
    """Yield the items of all sources sorted by `key`. Each source is sorted and has its own thread.

    An item waits until every source has an item or has ended, at most `window` seconds; later items
    are out of order. None is an unlimited window. The error of a source is raised after all others
    have ended.
    """
    arrivals: queue.SimpleQueue[tuple[int, float, T | _End]] = queue.SimpleQueue()
    waiting: list[deque[tuple[float, T]]] = []
    for number, source in enumerate(sources):
        waiting.append(deque())
        arguments = (number, source, arrivals)
        threading.Thread(target=_read, args=arguments, daemon=True).start()
    live, failure = set(range(len(waiting))), None
    while live or any(waiting):
        heads = [items for items in waiting if items]
        left = _patience(heads, window) if any(not waiting[number] for number in live) else 0
        try:
            number, came, item = arrivals.get(timeout=left) if left != 0 else arrivals.get_nowait()
        except queue.Empty:
            yield min(heads, key=lambda items: key(items[0][1])).popleft()[1]
            continue
        if isinstance(item, _End):
            live.remove(number)
            failure = failure or item.error
        else:
            waiting[number].append((came, item))
    if failure is not None:
        raise failure


def _patience(heads: list[deque[tuple[float, T]]], window: float | None) -> float | None:
    """Return the seconds until the oldest item must be yielded; None if there is no limit."""
    if window is None or not heads:
        return None
    return max(0.0, min(items[0][0] for items in heads) + window - time.monotonic())


def _read(
    number: int, source: Iterator[T], arrivals: queue.SimpleQueue[tuple[int, float, T | _End]]
) -> None:
    end = _End()
    try:
        for item in source:
            arrivals.put((number, time.monotonic(), item))
    except Exception as error:  # The consumer raises it.
        end = _End(error)
    arrivals.put((number, time.monotonic(), end))
