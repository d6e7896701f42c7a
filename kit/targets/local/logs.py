"""The log files of processes on this machine, read as they grow."""

from __future__ import annotations

from pathlib import Path

from kit.runtime.lines import split
from kit.runtime.status import LogLine


class Tail:
    """Reads the new complete lines of a log."""

    def __init__(self, job: str, host: str, path: Path) -> None:
        self._job = job
        self._host = host
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, last: bool) -> list[LogLine]:
        """Return the new lines; with `last` also an incomplete one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        texts = [split(line.decode(errors="replace").rstrip("\r")) for line in lines]
        return [LogLine(self._job, self._host, text, rank) for rank, text in texts]
