"""The hours in which an owner lends a host to the pool. Pure: the zone is data of the system."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from kit.sharing import Hours

AHEAD = 9
"""Days that are examined: a week, and the days around it."""


def lent(hours: Hours, now: float) -> tuple[bool, float | None]:
    """Return whether a host is lent now, and when that changes; None if it never does."""
    zone = ZoneInfo(hours.zone)
    today = datetime.fromtimestamp(now, zone).date()
    days = (today + timedelta(days=number) for number in range(-2, AHEAD))
    times = _merged(sorted(_times(hours, zone, days)))
    for begin, end in times:
        if begin <= now < end:
            endless = end >= _midnight(today + timedelta(days=AHEAD), zone)
            return True, None if endless else end
    return False, min((begin for begin, _ in times if begin > now), default=None)


def _times(hours: Hours, zone: ZoneInfo, days: Iterator[date]) -> Iterator[tuple[float, float]]:
    for day in days:
        own = hours.weekends if day.weekday() >= 5 else hours.weekdays
        if own is None:
            continue
        begin, end = own
        last = day if begin < end else day + timedelta(days=1)
        # A time that the clock skips or repeats has the UTC offset from before the change.
        yield (
            datetime.combine(day, begin, zone).timestamp(),
            datetime.combine(last, end, zone).timestamp(),
        )


def _midnight(day: date, zone: ZoneInfo) -> float:
    return datetime.combine(day, time(0), zone).timestamp()


def _merged(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join times that follow each other without a gap."""
    found: list[tuple[float, float]] = []
    for begin, end in times:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
