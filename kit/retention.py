"""How long and how many of the lines of containers the hosts keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """What each host keeps: the lines of the last `days`, at most `size` bytes of them."""

    days: int
    size: int
