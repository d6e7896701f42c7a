"""Time stamps of the Engine API: RFC 3339, in UTC, with nanoseconds."""

from __future__ import annotations

from datetime import datetime


def seconds(stamp: str) -> float:
    """Return the seconds since the epoch of a time stamp."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
