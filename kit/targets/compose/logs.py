"""The logs of jobs' containers on several hosts, read once or followed."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.runtime.event_log import last_lines
from kit.runtime.lines import split, with_note
from kit.runtime.status import LogLine
from kit.runtime.streams import WINDOW, lines, merged
from kit.targets.compose.containers import Container
from kit.targets.compose.observe import container

AGAIN = 1.0
"""Seconds until an ended log or an unreachable host is tried again."""
GRACE = 3.0
"""Seconds to wait for the last lines of an ended job."""

Over = Callable[[], bool]
"""Returns whether the jobs have ended; it may query the hosts."""


def read_logs(
    dockers: Mapping[str, Docker], containers: Sequence[Container], since: float
) -> Iterator[LogLine]:
    """Yield the output of containers, sorted by time."""
    sources = [_lines(dockers[one.host], one, since) for one in containers]
    if not since:
        sources = [*map(with_note, sources)]
    yield from merged(sources, _time, window=None)


def follow_logs(
    dockers: Mapping[str, Docker], containers: Sequence[Container], since: float, over: Over
) -> Iterator[LogLine]:
    """Yield the output of containers until `over`; then close the connections of `dockers`."""
    tails = [_Tail(dockers[one.host], one, since) for one in containers]
    left = threading.Event()
    watch = threading.Thread(target=_watch, args=(tails, dockers, over, left), daemon=True)
    watch.start()
    try:
        sources = [tail.lines() for tail in tails]
        yield from merged(sources if since else map(with_note, sources), _time, WINDOW)
    finally:
        left.set()
        _end(tails, dockers)


def parsed(one: Container, moment: float, text: str) -> LogLine:
    """Return a line of a container as a value."""
    rank, rest = split(text)
    return LogLine(one.job, one.host, rest, rank, moment)


def query(since: float) -> dict[str, str]:
    """Return the query parameters for a log."""
    return {"stdout": "1", "stderr": "1", "timestamps": "1", "since": f"{since:.9f}"}


def _time(line: LogLine) -> float:
    return line.time or 0.0


def _lines(docker: Docker, one: Container, since: float) -> Iterator[LogLine]:
    with docker.stream(f"/containers/{one.id}/logs", **query(since)) as response:
        for moment, text in lines(response):
            yield parsed(one, moment, text)


class _Tail:
    """The live log of one container, across its restarts and lost connections."""

    def __init__(self, docker: Docker, one: Container, since: float) -> None:
        self._docker = docker
        self._one = one
        self._since = since
        self.over = threading.Event()

    def lines(self) -> Iterator[LogLine]:
        lost = False
        while not self.over.is_set():
            try:
                yield from self._connected()
                lost = False
                if not self._runs():
                    return
            except (KitError, HTTPException, OSError) as error:
                if not lost and not self.over.is_set():
                    lost = True
                    reason = error.message if isinstance(error, KitError) else str(error)
                    yield parsed(self._one, self._since, f"kit: connection lost: {reason}")
            self.over.wait(AGAIN)

    def _connected(self) -> Iterator[LogLine]:
        path, last = f"/containers/{self._one.id}/logs", self._since
        with self._docker.stream(path, follow="1", **query(last)) as response:
            for moment, text in lines(response):
                # The last known line is sent again.
                if moment > last:
                    self._since = max(moment, self._since)
                    yield parsed(self._one, moment, text)

    def _runs(self) -> bool:
        """Return whether its engine will restart it; later output needs a new request."""
        try:
            inspected = self._docker.get(f"/containers/{self._one.id}/json")
        except EngineError:
            return False
        return container(self._one.host, inspected).runs


def _watch(
    tails: Sequence[_Tail], dockers: Mapping[str, Docker], over: Over, left: threading.Event
) -> None:
    """End the tails when the jobs are over, even if a host is unreachable."""
    while not left.wait(AGAIN):
        with suppress(KitError):
            if over():
                left.wait(GRACE)
                _end(tails, dockers)
                return


def _end(tails: Sequence[_Tail], dockers: Mapping[str, Docker]) -> None:
    for tail in tails:
        tail.over.set()
    for docker in dockers.values():
        docker.close()


def new_lines(docker: Docker, one: Container, since: float | None) -> list[LogLine]:
    """Return a container's output since a time; for None its last lines.

    Raises:
        KitError: The engine cannot be reached.
    """

    def read(**asked: str) -> list[LogLine]:
        content = docker.read(f"/containers/{one.id}/logs", **asked)
        return [parsed(one, moment, text) for moment, text in lines(io.BytesIO(content))]

    if since is not None:
        return read(**query(since))
    return last_lines(lambda tail: read(**query(0.0), tail=tail))
