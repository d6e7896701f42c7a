"""The rules of the queue, each in a pool that is as small as it can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.queue.decide import STILL, decide
from kit.queue.moves import UP, moves
from kit.queue.pool import Had, Pool, PoolHost, QueuedJob, Wish
from kit.queue.turn import turn
from kit.sharing import Person
from tests.queue.simulator import LEAVES, World

NOW = 1e9
LONG = 1e9


def hosts(number: int, gpus: int = 1) -> tuple[PoolHost, ...]:
    return tuple(
        PoolHost(f"h{host}", tuple(f"g{gpu}" for gpu in range(gpus))) for host in range(number)
    )


def job(name: str, wish: Wish, *has: str, owner: str = "anna", **more: object) -> QueuedJob:
    """Return a job that has all GPUs of hosts with one GPU for a while, or waits."""
    had = {host: Had(("g0",), NOW - 1000) for host in has}
    times = {"began": NOW - 1000} if has else {"waits": NOW - 10}
    values = {"priority": 50, "arrived": NOW - 1000, "has": had, **times, **more}
    return QueuedJob(name, owner, wish=wish, **values)  # type: ignore[arg-type]


def gives(pool: Pool) -> dict[str, set[str]]:
    return {name: set(given) for name, given in decide(pool).gives.items()}


def test_a_surplus_is_taken_before_another_job_has_to_move() -> None:
    fixed = job("fixed", Wish(1, 1), "h0", priority=10)
    large = job("large", Wish(1, 3), "h1", "h2", "h3")
    urgent = job("urgent", Wish(1, 1), priority=90)
    given = gives(Pool(NOW, hosts(4), (), (fixed, large, urgent)))
    assert given["fixed"] == {"h0"}
    assert len(given["large"]) == 2


def test_the_lowest_priority_and_the_largest_surplus_shrink_first() -> None:
    jobs = (
        job("high", Wish(1, 4), "h0", "h1", "h2", "h3"),
        job("low", Wish(1, 2), "h4", "h5", priority=10),
        job("lower", Wish(1, 4), "h6", "h7", "h8", priority=10),
    )
    urgent = job("urgent", Wish(1, 1), priority=90)
    given = gives(Pool(NOW, hosts(9), (), (*jobs, urgent)))
    assert given["high"] == {"h0", "h1", "h2", "h3"}
    assert given["low"] == {"h4", "h5"}
    assert len(given["lower"]) == 2


def test_the_last_job_stops_for_one_that_comes_before_it() -> None:
    first = job("first", Wish(1, 1), "h0", arrived=NOW - 3000)
    last = job("last", Wish(1, 1), "h1", arrived=NOW - 2000)
    urgent = job("urgent", Wish(1, 1), priority=90)
    given = gives(Pool(NOW, hosts(2), (), (first, last, urgent)))
    assert given == {"urgent": {"h1"}, "first": {"h0"}}


def test_a_job_that_has_just_got_a_host_is_not_stopped() -> None:
    young = job("young", Wish(2, 2), "h0", "h1")
    has = {**young.has, "h1": Had(("g0",), NOW - STILL / 2)}
    jobs = (replace(young, has=has), job("urgent", Wish(1, 1), priority=90))
    assert gives(Pool(NOW, hosts(2), (), jobs)) == {"young": {"h0", "h1"}}
    assert gives(Pool(NOW + STILL, hosts(2), (), jobs)).keys() == {"urgent"}


def test_a_job_begins_again_where_its_checkpoint_is() -> None:
    kept = Wish(1, 2, roams=False)
    waits = job("waits", kept, home=frozenset({"h2"}))
    # On the host with the checkpoint first, and when that is up, on others.
    pool = Pool(NOW, hosts(3), (), (waits,))
    (begin,) = turn(pool).moves.begins
    assert begin.host == "h2"
    up = job("waits", kept, home=frozenset({"h2"}), has={"h2": Had(("g0",), NOW)}, began=NOW)
    early = replace(pool, now=NOW + UP - 1, jobs=(up,))
    assert turn(early).moves.begins == ()
    (begin,) = turn(replace(early, now=NOW + UP)).moves.begins
    assert begin.host in {"h0", "h1"}


def test_a_job_that_has_left_its_host_comes_back_to_it() -> None:
    # Otherwise what others were given meanwhile would be decided anew, and nothing come to rest.
    pool = (PoolHost("h0", ("g0",)), PoolHost("h1", ("g0", "g1", "g2")))
    left = job("left", Wish(2, 2, each=0), home=frozenset({"h1"}))
    assert gives(Pool(NOW, pool, (), (left,)))["left"] == {"h1"}


def test_a_job_whose_checkpoint_is_on_a_host_of_its_owner_waits_for_it() -> None:
    closed = (*hosts(2), PoolHost("h2", ("g0",), open=False))
    ran = job("ran", Wish(1, 2, roams=False), "h2", home=frozenset({"h2"}))
    decision = decide(Pool(NOW, closed, (), (ran,)))
    assert decision.gives == {}
    assert decision.reasons == {"ran": "waits for h2, where its checkpoints are"}
    # All hosts see the checkpoints of another one, and two hosts had this one's.
    assert gives(Pool(NOW, closed, (), (job("roams", Wish(1, 1), "h2"),)))
    both = job("ran", Wish(1, 2, roams=False), "h1", "h2", home=frozenset({"h1", "h2"}))
    assert gives(Pool(NOW, closed, (), (both,)))["ran"] >= {"h1"}


def test_the_checkpoint_is_where_a_job_has_trained_for_a_while() -> None:
    wish = Wish(1, 3, roams=False)
    has = {"h0": Had(("g0",), NOW - 1000), "h1": Had(("g0",), NOW - STILL / 2)}
    (noted,) = turn(Pool(NOW, hosts(2), (), (job("a", wish, has=has, began=NOW),))).jobs
    assert noted.home == {"h0"}
    (later,) = turn(Pool(NOW + STILL, hosts(2), (), (replace(noted, has=has),))).jobs
    assert later.home == {"h0", "h1"}
    (stopped,) = turn(Pool(NOW, hosts(0), (), (replace(later, has={}),))).jobs
    assert stopped.home == {"h0", "h1"}


def test_single_gpus_stay_where_they_are() -> None:
    pool_hosts = hosts(2, 4)
    first = job("first", Wish(2, 4, 0))
    has = {host.name: Had(("g0", "g1"), NOW - 1000) for host in pool_hosts}
    first = replace(first, has=has, began=NOW - 1000, waits=None)
    decision = decide(pool := Pool(NOW, pool_hosts, (), (first,)))
    assert not moves(pool, decision).releases


def test_a_job_does_not_leave_a_host_that_it_has_just_got_for_more_gpus() -> None:
    first = replace(job("first", Wish(1, 4, 0)), began=NOW - 1000, waits=None)
    for seconds, moved in ((STILL / 2, False), (STILL, True)):
        has = {"h0": Had(("g0", "g1"), NOW - seconds)}
        pool = Pool(NOW, hosts(1, 4), (), (replace(first, has=has),))
        assert bool(moves(pool, decide(pool)).releases) == moved


def test_a_group_that_lost_hosts_goes_on_whole() -> None:
    lost = replace(job("lost", Wish(2, 2), "h9"), has={})
    leaving = job("leaving", Wish(1, 1), "h1", priority=0)
    pool = Pool(NOW, hosts(2), (), (lost, leaving))
    decision = decide(pool)
    assert set(decision.gives["lost"]) == {"h0", "h1"}
    assert not moves(pool, decision).begins


def test_a_job_that_has_begun_stays_until_its_owner_is_a_slice_ahead() -> None:
    jobs = (job("begun", Wish(1, 1), "h0"), job("waits", Wish(1, 1), owner="ben"))
    for used, first in ((1.1, "begun"), (2.1, "waits")):
        pool = Pool(NOW, hosts(1), (), jobs, {"anna": used, "ben": 0.9})
        assert gives(pool).keys() == {first}


def test_an_early_job_stays_while_its_owner_is_less_than_a_slice_ahead() -> None:
    large = job("large", Wish(2, 2), priority=90)
    early = job("early", Wish(1, 1), "h0", early=True)
    waits = job("waits", Wish(1, 1), owner="ben", arrived=NOW - 10)
    for used, first in ((0.3, "early"), (1.3, "waits")):
        pool = Pool(NOW, hosts(1), (), (large, early, waits), {"anna": used, "ben": 0.2})
        assert gives(pool).keys() == {first}


def test_what_is_left_is_shared_evenly() -> None:
    jobs = (job("first", Wish(1, 4)), job("second", Wish(1, 4), owner="ben"))
    given = gives(Pool(NOW, hosts(4), (), jobs, {"ben": 0.1}))
    assert [len(has) for has in given.values()] == [2, 2]


def test_an_odd_gpu_stays_where_it_is() -> None:
    jobs = (
        job("first", Wish(1, 3), "h0", "h1"),
        job("second", Wish(1, 3), "h2", owner="ben"),
    )
    given = gives(Pool(NOW, hosts(3), (), jobs, {"anna": 0.1}))
    assert given == {"first": {"h0", "h1"}, "second": {"h2"}}


def test_a_reason_names_the_jobs_on_the_hosts_that_are_wanted() -> None:
    jobs = (
        job("first", Wish(1, 1), "h0"),
        job("second", Wish(1, 1), "h1"),
        job("waits", Wish(1, 1, None, frozenset({"h1"}))),
    )
    reasons = decide(Pool(NOW, hosts(2), (), jobs)).reasons
    assert reasons == {"waits": "waits for 1 host, which second has"}


def run_equal(wish: Wish, number: int, made: World, seconds: float) -> None:
    """Let two people have equal jobs without an end for a while."""
    for owner in ("anna", "ben"):
        for each in range(number):
            made.add(job(f"{owner}{each}", wish, owner=owner, waits=made.pool.now), LONG)
    made.act()
    for _ in range(int(seconds / 900)):
        made.wait(900)


def test_equals_do_not_stop_each_other_all_the_time() -> None:
    made = World(Pool(NOW, hosts(4), (Person("anna"), Person("ben")), ()))
    run_equal(Wish(1, 1), 4, made, 120 * 3600)
    # A change at the end of each slice stops as many jobs as there are GPUs.
    assert sum(made.stops.values()) <= 4 * 120
    assert made.spent["anna"] == pytest.approx(made.spent["ben"], rel=0.05)


def test_an_odd_gpu_goes_to_each_in_turn() -> None:
    made = World(Pool(NOW, hosts(3), (Person("anna"), Person("ben")), ()))
    run_equal(Wish(1, 3), 1, made, 200 * 3600)
    assert not made.stops
    assert made.spent["anna"] == pytest.approx(made.spent["ben"], rel=0.05)


def test_short_jobs_do_not_keep_a_large_one_waiting() -> None:
    made = World(Pool(NOW, hosts(1, 8), (), ()))
    number = 0
    for step in range(80):
        if step == 20:
            large = job("large", Wish(1, 1), priority=90, waits=made.pool.now)
            made.add(large, LONG)
        while sum(each.began is None for each in made.pool.jobs) < 8:
            short = job(f"short{number:03}", Wish(1, 1, 1), owner="ben", waits=made.pool.now)
            made.add(short, 65 + number * 7 % 40)
            number += 1
        made.act()
        made.wait(5)
    assert made.longest["large"] < STILL + LEAVES + 5


def test_the_release_of_a_host_ends_before_another_job_begins_there() -> None:
    made = World(Pool(NOW, hosts(1), (), ()))
    made.add(job("first", Wish(1, 1), waits=NOW), LONG)
    made.act()
    made.wait(STILL)
    made.add(job("urgent", Wish(1, 1), priority=90, waits=made.pool.now), LONG)
    made.act()
    assert [set(each.has) for each in made.pool.jobs] == [{"h0"}, set()]
    made.wait(LEAVES)
    assert [set(each.has) for each in made.pool.jobs] == [set(), {"h0"}]


def test_who_loses_a_host_anyway_takes_none_from_an_equal() -> None:
    lost = job("lost", Wish(1, 1), "h9", arrived=NOW - 3000)
    stays = job("stays", Wish(1, 1), "h0", owner="ben")
    pool = Pool(NOW, hosts(1), (), (lost, stays))
    assert gives(pool) == {"stays": {"h0"}}
    closed = (*hosts(1), PoolHost("h9", ("g0",), open=False))
    assert gives(replace(pool, hosts=closed)) == {"stays": {"h0"}}
