"""The report of prepare-host.sh as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from kit.model import Host

KINDS = frozenset({"ok", "change", "changed", "note", "problem", "failed", "waits"})
"""The first words of the script's lines; lines without one are details, such as a diff."""
_RESTART = re.compile(r"restart Docker: containers=(\d+) swarm=(\w+)")


class Status(IntEnum):
    """The exit status of the script."""

    DONE = 0
    FAILED = 1
    CONFLICT = 2
    WAITS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `kind` is one of KINDS, or "" for a detail."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of Docker: the containers that it ends, and whether the host is in a Swarm."""

    containers: int
    swarm: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The output of the script of one host, and its exit status."""

    host: Host
    status: int
    lines: tuple[Line, ...]

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes that the script would make."""
        return tuple(line.text for line in self.lines if line.kind == "change")

    @property
    def problems(self) -> tuple[str, ...]:
        """Conflicts that a person must resolve, and failures."""
        return tuple(line.text for line in self.lines if line.kind in {"problem", "failed"})

    @property
    def explained(self) -> bool:
        """Whether the lines give the reason of the exit status."""
        match self.status:
            case Status.DONE:
                return True
            case Status.FAILED:
                return bool(self.changes or self.problems)
            case Status.CONFLICT:
                return bool(self.problems)
            case Status.WAITS:
                return self.restart is not None
        return False

    @property
    def restart(self) -> Restart | None:
        """The restart of Docker that is necessary, if any."""
        for line in self.lines:
            if line.kind in {"change", "waits"} and (match := _RESTART.match(line.text)):
                return Restart(int(match[1]), match[2] not in {"inactive", "locked"})
        return None

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "host": self.host.name,
            "status": self.status,
            "lines": [asdict(line) for line in self.lines],
        }


def read_line(text: str) -> Line:
    """Return one line of the script's output."""
    kind, _, rest = text.partition(" ")
    return Line(kind, rest.strip()) if kind in KINDS else Line("", text)


def read_report(host: Host, status: int, texts: Sequence[str]) -> Report:
    """Return the report in the lines of the script's output."""
    return Report(host, status, tuple(map(read_line, texts)))
