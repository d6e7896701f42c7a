"""The queue: who gets which GPUs, when, and that nothing goes wrong in pools of chance."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, time
from zoneinfo import ZoneInfo

import pytest

from kit.queue.decide import STILL, decide
from kit.queue.hours import lent
from kit.queue.order import SLICE
from kit.queue.pool import Pool, PoolHost, QueuedJob, Wish
from kit.sharing import ALL_DAY, Hours, Person
from tests.queue.simulator import LEAVES, World, run, units

HOSTS = tuple(PoolHost(f"pc{number}", ("0", "1")) for number in range(1, 5))
LONG = 1e9


def world(*people: Person, hosts: tuple[PoolHost, ...] = HOSTS) -> World:
    return World(Pool(1e9, hosts, people, ()))


def add(
    made: World, name: str, least: int, most: int, *, seconds: float = LONG, **more: object
) -> None:
    """Submit a job that wants hosts, and let it begin if it can."""
    values = {"owner": "anna", "priority": 50, **more}
    now = made.pool.now
    job = QueuedJob(name, arrived=now, waits=now, wish=Wish(least, most), **values)  # type: ignore[arg-type]
    made.add(job, seconds)
    made.act()
    made.wait(1)


def sizes(made: World) -> dict[str, int]:
    return {job.name: len(job.keeps) for job in made.pool.jobs}


def settle(made: World) -> None:
    made.wait(STILL + LEAVES)
    made.wait(STILL + LEAVES)


def test_a_job_shrinks_for_another_one_and_grows_again() -> None:
    made = world()
    add(made, "first", 1, 4)
    assert sizes(made) == {"first": 4}
    made.wait(STILL)
    add(made, "second", 2, 2, seconds=3 * 4 * 100)
    settle(made)
    assert sizes(made) == {"first": 2, "second": 2}
    assert made.stops["first"] == 0
    made.wait(400)
    settle(made)
    assert sizes(made) == {"first": 4}


def test_a_job_below_its_least_stops_only_for_a_higher_priority() -> None:
    made = world()
    add(made, "first", 3, 4)
    made.wait(STILL)
    add(made, "equal", 2, 2)
    settle(made)
    assert sizes(made) == {"first": 4, "equal": 0}
    add(made, "urgent", 4, 4, priority=90)
    settle(made)
    assert sizes(made) == {"first": 0, "equal": 0, "urgent": 4}
    reasons = decide(made.pool).reasons
    assert reasons["first"] == "waits for 3 hosts, which urgent has"


def test_a_later_job_begins_early_and_gives_way() -> None:
    made = world()
    add(made, "running", 3, 3, seconds=6 * 1000)
    add(made, "large", 4, 4)
    add(made, "small", 1, 1)
    assert sizes(made) == {"running": 3, "large": 0, "small": 1}
    assert [job.early for job in made.pool.jobs] == [False, False, True]
    made.wait(1100)
    settle(made)
    assert sizes(made) == {"large": 4, "small": 0}


def test_nobody_waits_for_ever() -> None:
    made = world()
    add(made, "endless", 4, 4, priority=90)
    add(made, "humble", 4, 4, priority=0)
    hours = 0.0
    while not sizes(made)["humble"]:
        made.wait(900)
        hours += 0.25
        assert hours < 24 * 11
    # It keeps its hosts for a while: long enough to be worth the change.
    made.wait(SLICE / 2)
    assert sizes(made)["humble"] == 4
    made.wait(SLICE)
    settle(made)
    assert sizes(made)["endless"] == 4


def test_shares_are_those_of_the_people() -> None:
    made = world(Person("anna", 2.0), Person("ben", 1.0), hosts=HOSTS[:3])
    for owner in ("anna", "ben"):
        for number in range(3):
            add(made, f"{owner}{number}", 1, 1, owner=owner, seconds=3600 * (5 + number))
            made.left[f"{owner}{number}"] = LONG
    made.wait(1)
    settle(made)
    made.spent.clear()
    for _ in range(200):
        made.wait(3600)
    assert made.spent["anna"] / made.spent["ben"] == pytest.approx(2.0, rel=0.05)


def test_a_person_has_at_most_what_is_allowed() -> None:
    made = world(Person("anna", most=4))
    add(made, "first", 1, 4)
    add(made, "second", 1, 1)
    add(made, "third", 1, 1)
    assert sizes(made) == {"first": 1, "second": 1, "third": 0}
    assert decide(made.pool).reasons["third"] == "anna has 4 of at most 4 GPUs"
    add(made, "bens", 1, 4, owner="ben")
    settle(made)
    assert sizes(made)["bens"] == 2


def test_an_owner_has_the_host_within_seconds() -> None:
    made = world()
    add(made, "first", 4, 4)
    made.host("pc2", open=False)
    made.act()
    made.wait(LEAVES + 0.1)
    assert "pc2" not in made.pool.jobs[0].has
    assert decide(made.pool).reasons["first"] == "wants 4 hosts, and the pool has 3 for it now"
    made.host("pc2", open=True)
    settle(made)
    assert sizes(made) == {"first": 4}


def test_gpus_on_any_hosts() -> None:
    made = world()
    job = QueuedJob("any", "anna", 50, made.pool.now, Wish(3, 5, 0), waits=made.pool.now)
    made.add(job, LONG)
    made.act()
    has = {host: had.gpus for host, had in made.pool.jobs[0].keeps.items()}
    assert units(job.wish, has) == 5


@pytest.mark.parametrize("seed", range(6))
def test_pools_of_chance(seed: int) -> None:
    made = run(seed)
    assert made.decided > 60


BERLIN = Hours("Europe/Berlin", (time(19), time(8)), ALL_DAY)


@pytest.mark.parametrize(
    ("when", "is_lent", "until"),
    [
        ("2026-11-25 12:00", False, "2026-11-25 19:00"),
        ("2026-11-25 19:00", True, "2026-11-26 08:00"),
        ("2026-11-26 07:59", True, "2026-11-26 08:00"),
        ("2026-11-26 08:00", False, "2026-11-26 19:00"),
        # From Friday evening to midnight on Sunday.
        ("2026-11-28 03:00", True, "2026-11-30 00:00"),
        ("2026-11-30 07:00", False, "2026-11-30 19:00"),
        # The clock is put back on 25 October at 3, and forward on 29 March at 2.
        ("2026-10-24 12:00", True, "2026-10-26 00:00"),
        ("2027-03-26 20:00", True, "2027-03-29 00:00"),
    ],
)
def test_hours(when: str, is_lent: bool, until: str) -> None:
    zone = ZoneInfo("Europe/Berlin")
    now = datetime.fromisoformat(when).replace(tzinfo=zone).timestamp()
    then = datetime.fromisoformat(until).replace(tzinfo=zone).timestamp()
    assert lent(BERLIN, now) == (is_lent, then)


def test_hours_that_never_change() -> None:
    assert lent(Hours("UTC", ALL_DAY, ALL_DAY), 1e9) == (True, None)
    assert lent(Hours("UTC"), 1e9) == (False, None)
    assert replace(BERLIN, zone="UTC") != BERLIN
