"""The events in the logs of one workload. Each update reads only new lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from kit.errors import KitError
from kit.hosts.docker import concurrently
from kit.runtime.events import Reader
from kit.runtime.lines import is_event
from kit.runtime.status import LogLine

TAIL = "500"
"""Lines that the first update reads: every rank reports its place once a minute, and rank 0 its
progress at least every 10 s. The beginning of a log may be gone anyway, as Docker rotates it."""

MORE = "20000"
"""Lines that it reads if the last ones have no event: scripts may print many lines."""

Source = Callable[[float | None], Sequence[LogLine]]
"""Returns the lines after a time in seconds since the epoch, or the last lines for None."""


def last_lines(read: Callable[[str], list[LogLine]]) -> list[LogLine]:
    """Return a source's last lines, with events if it has some; `read` takes a number of lines."""
    lines = read(TAIL)
    if len(lines) < int(TAIL) or any(is_event(line.text) for line in lines):
        return lines
    return read(MORE)


class EventLog:
    """Reads the logs of a workload's containers or tasks, by their ids."""

    def __init__(self) -> None:
        self.reader = Reader()
        self.refused: dict[str, KitError] = {}
        """The sources that the last update could not read, with the reasons."""
        self._since: dict[str, float] = {}

    def update(self, sources: Mapping[str, Source]) -> Reader:
        """Read the new lines. Lines of an unreachable source are read in a later update."""
        if self._since and not self._since.keys() & sources.keys():
            self.reader, self._since = Reader(), {}  # This is another run.

        def new_lines(source: str) -> Sequence[LogLine]:
            last = self._since.get(source)
            new = [line for line in sources[source](last) if (line.time or 0.0) > (last or 0.0)]
            if new:
                self._since[source] = max(line.time or 0.0 for line in new)
            return new

        results = dict(zip(sources, concurrently(new_lines, sources), strict=True))
        self.refused = {
            source: result for source, result in results.items() if isinstance(result, KitError)
        }
        read_lines = (result for result in results.values() if not isinstance(result, KitError))
        for line in sorted(chain.from_iterable(read_lines), key=lambda line: line.time or 0.0):
            self.reader.read(line)
        return self.reader
