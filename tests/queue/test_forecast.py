"""What will run tonight: hosts are lent and taken back, no job ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

from kit.queue.document import Rules
from kit.queue.forecast import DAY, forecast, starts
from kit.queue.hours import lent
from kit.queue.pool import Pool, PoolHost, QueuedJob, Wish
from kit.sharing import EQUAL, Hours

NIGHT = Hours("UTC", (time(19), time(8)), None)
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()
EVENING, MORNING = NOON + 7 * 3600, NOON + 20 * 3600
RULES = Rules((("pc1", ("0",), None), ("pc2", ("0",), NIGHT)), EQUAL)


def pool(*jobs: QueuedJob) -> Pool:
    is_open, until = lent(NIGHT, NOON)
    return Pool(NOON, (PoolHost("pc1", ("0",)), PoolHost("pc2", ("0",), is_open, until)), (), jobs)


def job(name: str, least: int, most: int, priority: int = 50) -> QueuedJob:
    return QueuedJob(name, "anna", priority, NOON, Wish(least, most), waits=NOON)


def test_jobs_get_the_hosts_of_the_night_and_leave_them() -> None:
    moments = list(forecast(pool(job("one", 1, 2), job("two", 2, 2, 40)), RULES, NOON + DAY))
    assert [(each.time, each.opens, each.closes, each.hosts) for each in moments] == [
        (NOON, (), (), {"one": ("pc1",)}),
        (EVENING, ("pc2",), (), {"one": ("pc1", "pc2")}),
        (MORNING, (), ("pc2",), {"one": ("pc1",)}),
    ]


def test_a_job_that_waits_for_a_host_has_a_time() -> None:
    assert starts(pool(job("two", 2, 2)), RULES) == {"two": EVENING}
    # Its owner has the host, whatever the hours say.
    held = pool(job("two", 2, 2))
    hosts = (held.hosts[0], replace(held.hosts[1], until=None))
    assert starts(replace(held, hosts=hosts), RULES) == {}
