"""Decisions about groups: any order of messages and faults, and mutants that must be found."""

import os
import random
import signal
import subprocess
from dataclasses import replace

import pytest

from tests.trainer import interleavings
from tests.trainer.interleavings import Cluster, WrongError, place, walk
from trainer.core.live_state import Claim
from trainer.elastic import decisions
from trainer.elastic.agent import stands_still
from trainer.elastic.decisions import Decisions, natural
from trainer.elastic.messages import (
    Group,
    Halt,
    MalformedError,
    Member,
    Order,
    Report,
    decode,
    encode,
)

SEEDS = int(os.environ.get("KIT_WALKS", "40"))
FAULTS = ("kill_worker", "lose_host", "cut", "lose_coordinator")


def test_random_runs_keep_every_step_and_go_on() -> None:
    assert sum(map(walk, range(SEEDS))) > 100 * SEEDS


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_at_any_place_keeps_every_step(kind: str) -> None:
    for turns in range(0, 24, 2):
        place(turns, kind, seed=turns)


def take_a_step_twice() -> None:
    """One rank alone completes a step; the others take it again without it, and it returns."""
    cluster = Cluster(random.Random(1), hosts=3, least=1)
    for _ in range(40):
        cluster.fair_turn()
    out, *others = cluster.hosts
    cluster.complete(out)
    for host in (out, *others):
        cluster.leave(host)
    cluster.cut(out)
    cluster.hosts = others
    while any(len(host.state or ()) < len(out.state or ()) for host in others):
        cluster.fair_turn()
    assert {host.state for host in others} != {out.state}
    for host in others:
        cluster.leave(host)
    cluster.hosts = [out, *others]
    cluster.settle()


def test_a_step_that_was_taken_twice_counts_once() -> None:
    take_a_step_twice()


def wrong(seeds: int = 100) -> str:
    """What the first of some random runs finds wrong, or ""."""
    for seed in range(seeds):
        try:
            walk(seed, rate=0.08)
        except WrongError as error:
            return str(error)
    return ""


def test_a_mutant_that_prefers_newer_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_group(claims: list[Claim | None]) -> int | None:
        known = [claim for claim in claims if claim]
        best = max(known, key=lambda claim: (claim.generation, claim.samples), default=None)
        return claims.index(best) if best else None

    monkeypatch.setattr(interleavings, "elect", by_group)
    assert "a step is lost" in wrong()


def test_a_mutant_that_knows_no_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleavings, "Claim", lambda samples, *_: Claim(samples, 0, 0))
    with pytest.raises(WrongError, match="ranks differ"):
        take_a_step_twice()


def test_a_mutant_that_numbers_groups_from_its_own_memory_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgets(self: Decisions, report: Report) -> None:
        self.hosts[report.agent] = report

    monkeypatch.setattr(Decisions, "report", forgets)
    monkeypatch.setattr(
        interleavings.Cluster,
        "new_coordinator",
        lambda self: Decisions(lambda: self.now, self.least, self.most, self.spares),
    )
    assert wrong()


def test_a_mutant_that_aborts_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Decisions._order

    def patient(self: Decisions, report: Report) -> Order:
        order = before(self, report)
        return Order() if order.kind == "abort" else order

    monkeypatch.setattr(Decisions, "_order", patient)
    monkeypatch.setattr(interleavings.Cluster, "can_fail", lambda *_: False)
    assert "does not train" in wrong()


def report(name: str, **more: object) -> Report:
    return Report(f"{name}-1", name, 1, f"{name}:1", **more)  # type: ignore[arg-type]


def test_ranks_follow_names_and_then_who_was_there_first() -> None:
    now = [0.0]
    found = Decisions(lambda: now[0], 1, 2)
    for name in ("n10", "n2"):
        found.report(report(name, ready=True))
    joins = found.orders()
    group = joins["n2-1"].group
    assert group
    assert [member.host for member in group.members] == ["n2", "n10"]
    assert (group.first_rank("n10-1"), group.size) == (1, 2)
    found.lose("n2-1", "is lost")
    one = group.generation
    found.report(report("n10", generation=one, left=one, ready=True))
    found.orders()
    now[0] += decisions.LAST_CALL
    found.report(report("n2", ready=True))
    found.report(report("n10", generation=one + 1, members=("n10-1",)))
    now[0] += decisions.GATHER
    assert {order.kind for order in found.orders().values()} == {"leave", "wait"}
    found.report(report("n10", generation=one + 1, left=one + 1, ready=True))
    group = found.orders()["n10-1"].group
    assert group
    assert [member.host for member in group.members] == ["n10", "n2"]


def test_a_spare_takes_the_place_of_a_lost_host_and_keeps_it() -> None:
    now = [0.0]

    def members() -> list[str]:
        groups = [each.group for each in found.orders().values() if each.kind == "join"]
        assert len({group.generation for group in groups if group}) <= 1
        return [member.host for group in groups[:1] if group for member in group.members]

    found = Decisions(lambda: now[0], 2, 2, 1)
    for name in ("s1", "n1"):
        found.report(report(name, ready=True, spare=name == "s1"))
    assert not members()  # n2 may come yet.
    found.report(report("n2", ready=True))
    assert members() == ["n1", "n2"]
    group = found.group
    assert group
    for name in ("n1", "n2"):
        found.report(report(name, generation=group.generation, members=("n1-1", "n2-1")))
    found.lose("n1-1", "is lost")
    assert not members()
    found.report(report("n2", left=group.generation, ready=True))
    assert members() == ["n2", "s1"]
    group = found.group
    assert group
    for name in ("n2", "s1"):
        trains = report(name, generation=group.generation, members=("n2-1", "s1-1"))
        found.report(replace(trains, spare=name == "s1"))
    found.report(report("n1", ready=True))
    now[0] += 60
    assert {order.kind for order in found.orders().values()} == {"wait"}
    # A new coordinator does not let n1 begin alone while the two that train are on their way.
    found = Decisions(lambda: now[0], 1, 1, 1)
    found.report(report("n1", ready=True))
    assert not members()
    now[0] += decisions.RETURN
    assert members() == ["n1"]


@pytest.mark.parametrize(("spares", "ends"), [(1, False), (0, True)])
def test_a_host_that_is_left_out_ends_no_job_with_a_spare(spares: int, *, ends: bool) -> None:
    found = Decisions(lambda: 0.0, 2, 2, spares)
    found.report(report("n1", ready=True))
    found.report(report("n2", out=Halt("gpu", "its GPU has failed", 1)))
    assert all((order.kind == "end") == ends for order in found.orders().values())


def test_a_host_that_ends_lets_the_others_save() -> None:
    found = Decisions(lambda: 9.0, 1, 2)
    for name in ("n1", "n2"):
        found.report(report(name, ready=True))
    group = found.orders()["n1-1"].group
    assert group
    members = tuple(member.agent for member in group.members)
    for name, leaving in (("n1", True), ("n2", True)):
        found.report(report(name, generation=group.generation, members=members, leaving=leaving))
    assert set(found.orders().values()) == {Order("leave", group.generation, save=True)}


@pytest.mark.parametrize("how", ["done", "halt"])
def test_the_end_is_for_all_and_the_next_run_begins_anew(how: str) -> None:
    found = Decisions(lambda: 0.0, 1, 2)
    halt = Halt("loss", "the loss is not finite", 1)
    for name in ("n1", "n2"):
        found.report(report(name, ready=True))
    found.report(report("n1", done=how == "done", halt=halt if how == "halt" else None))
    told = Halt("loss", "the loss is not finite", 1, "n1") if how == "halt" else None
    assert set(found.orders().values()) == {Order("end", halt=told)}
    found.lose("n1-1", "has ended")
    for late in ("n3", "n4"):
        found.report(report(late, ready=True))
    assert found.orders()["n3-1"] == Order()
    found.lose("n2-1", "has ended")
    assert {order.kind for order in found.orders().values()} == {"join"}


def test_messages_survive_their_way_and_others_are_refused() -> None:
    group = Group(7, (Member("n1-1", "n1", "[fe80::1]:5", 2),))
    for message in (Order("join", 7, group=group), Order("end", halt=Halt("loss", "x", 1, "n1"))):
        assert decode(Order, encode(message)) == message
    told = report("n1", members=("n1-1",), halt=Halt("data", "é", 2))
    assert decode(Report, encode(told)) == told
    for line in (b"", b"[]", b"{}", b"nonsense", b'{"group": 3}', b"[" * 5000, b"\xff"):
        with pytest.raises(MalformedError):
            decode(Report, line)


def test_names_sort_by_their_numbers() -> None:
    names = [f"n{number}" for number in range(1, 13)]
    assert sorted(random.Random(1).sample(names, 12), key=natural) == names


def test_only_a_process_that_is_there_stands_still() -> None:
    """A worker that was killed is gone from /proc before the agent knows its exit code."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not stands_still(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert stands_still(process.pid)
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not stands_still(process.pid)
    process.wait()
    assert not stands_still(process.pid)
