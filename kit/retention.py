"""The limits of the container logs that hosts keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """Each host keeps the log lines of the last `days`, at most `size` bytes."""

    days: int
    size: int
