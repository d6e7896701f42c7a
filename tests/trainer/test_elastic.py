"""Decisions about groups: any order of messages and faults, and mutants that must be found."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer import interleavings
from tests.trainer.hosts import wait_until
from tests.trainer.interleavings import Cluster, Scripts, WrongError, place, walk
from trainer.core.divided import Claim
from trainer.elastic import pulse
from trainer.elastic.pulse import Activity, Beat, Patience
from trainer.elastic.workers import stands_still
from trainer.group import decisions
from trainer.group.decisions import ABSENT, TRAINING, Decisions
from trainer.group.knowledge import Knowledge, natural
from trainer.group.messages import (
    Group,
    Halt,
    MalformedError,
    Member,
    Order,
    Report,
    decode,
    encode,
)
from trainer.launcher.coordinator import is_final
from trainer.launcher.rounds import Rounds

WALKS = int(os.environ.get("KIT_WALKS", "100"))
"""Random runs of `make test-long`."""
FAULTS = ("kill_worker", "lose_host", "cut", "lose_coordinator", "hang")


BOTH = pytest.mark.parametrize("protocol", [Cluster, Scripts])
"""The built-in training, and the rounds of a script."""


@pytest.mark.parametrize("seeds", [15, pytest.param(WALKS, marks=pytest.mark.long)])
@BOTH
def test_random_runs_keep_every_step_and_go_on(protocol: type[Cluster], seeds: int) -> None:
    assert sum(walk(seed, protocol=protocol) for seed in range(seeds)) > 100 * seeds


@pytest.mark.parametrize(
    ("protocol", "kind"),
    # Nobody looks whether a script hangs.
    [(Cluster, kind) for kind in FAULTS] + [(Scripts, kind) for kind in FAULTS if kind != "hang"],
)
@pytest.mark.parametrize("first", [0, pytest.param(2, marks=pytest.mark.long)])
def test_one_fault_at_any_place_keeps_every_step(
    protocol: type[Cluster], kind: str, first: int
) -> None:
    for turns in range(first, 24, 4):
        place(turns, kind, seed=turns, protocol=protocol)


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


def wrong(protocol: type[Cluster] = Cluster, seeds: int = 100) -> str:
    """What the first of some random runs finds wrong, or ""."""
    for seed in range(seeds):
        try:
            walk(seed, rate=0.08, protocol=protocol)
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


@BOTH
def test_a_mutant_that_numbers_groups_from_its_own_memory_is_found(
    protocol: type[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(self: Knowledge, report: Report) -> None:
        self.hosts[report.agent] = report

    monkeypatch.setattr(Knowledge, "report", forgets)
    monkeypatch.setattr(Cluster, "new_calendar", lambda _: lambda: 0.0)
    monkeypatch.setattr(Cluster, "new_chance", lambda _: lambda: 0)
    assert wrong(protocol)


@BOTH
def test_a_mutant_that_aborts_nothing_is_found(
    protocol: type[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Decisions._order

    def patient(self: Decisions, report: Report) -> Order:
        order = before(self, report)
        return Order() if order.kind == "abort" else order

    monkeypatch.setattr(Decisions, "_order", patient)
    monkeypatch.setattr(protocol, "can_fail", lambda *_: False)
    assert "train" in wrong(protocol)


def test_a_mutant_that_lets_a_round_leave_after_a_step_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rounds, "_leave_group", Decisions._leave_group)
    assert "train" in wrong(Scripts)


def test_a_mutant_that_ends_a_script_with_its_first_host_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Rounds._present

    def first(self: Rounds) -> list[Report]:
        return [each for each in before(self) if each.done] or before(self)

    monkeypatch.setattr(Rounds, "_present", first)
    assert "has not ended" in wrong(Scripts)


def test_a_mutant_that_waits_for_a_hung_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "hung", lambda *_, **__: [])
    assert wrong()


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
    now[0] += TRAINING.last_call
    found.report(report("n2", ready=True))
    found.report(report("n10", generation=one + 1, members=("n10-1",)))
    now[0] += TRAINING.gather
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
    now[0] += TRAINING.returning
    assert members() == ["n1"]


def test_a_spare_with_the_newest_checkpoint_takes_part_in_a_new_start() -> None:
    now, said = [0.0], list[str]()
    found = Decisions(lambda: now[0], 1, 2, 1, say=said.append)
    found.report(report("n1", ready=True, saved=3))
    found.report(report("n2", ready=True, saved=3))
    found.report(report("s1", spare=True, saved=347, starting=True))
    now[0] += TRAINING.last_call
    found.orders()
    now[0] += 1
    assert {order.kind for order in found.orders().values()} == {"wait"}  # s1 imports PyTorch.
    found.report(report("s1", spare=True, saved=347, ready=True))
    group = found.orders()["s1-1"].group
    assert group
    assert [member.host for member in group.members] == ["n1", "s1"]
    assert "s1 joins the group: it has the newest checkpoint" in said


@pytest.mark.parametrize("saved", [-1, 2, 3])
def test_a_spare_without_a_newer_checkpoint_stands_by(saved: int) -> None:
    now = [0.0]
    found = Decisions(lambda: now[0], 1, 2, 1)
    for name in ("n1", "n2"):
        found.report(report(name, ready=True, saved=3 if name == "n1" else -1))
    found.report(report("s1", spare=True, saved=saved, starting=True))
    now[0] += TRAINING.returning
    group = found.orders()["n1-1"].group
    assert group
    assert [member.host for member in group.members] == ["n1", "n2"]


def test_a_host_that_starts_for_ever_is_not_waited_for() -> None:
    now = [1.0]
    found = Decisions(lambda: now[0], 1, 1, 1)
    found.report(report("n1", ready=True, saved=3))
    found.report(report("s1", spare=True, saved=347, starting=True))
    found.orders()
    now[0] += TRAINING.warm_up + 1
    assert found.orders()["n1-1"].kind == "join"


@pytest.mark.parametrize(("spares", "ends"), [(1, False), (0, True)])
def test_a_host_that_is_left_out_ends_no_job_with_a_spare(spares: int, *, ends: bool) -> None:
    found = Decisions(lambda: 0.0, 2, 2, spares)
    found.report(report("n1", ready=True))
    found.report(report("n2", out=Halt("gpu", "its GPU has failed", 1)))
    assert all((order.kind == "end") == ends for order in found.orders().values())


@pytest.mark.parametrize(
    ("fault", "why"), [("starting", "a worker of n2 failed"), ("lost", "n2 is lost")]
)
def test_a_new_coordinator_names_the_host_that_failed(fault: str, why: str) -> None:
    now, said = [0.0], list[str]()
    found = Decisions(lambda: now[0], 1, 2, say=said.append)
    trains = {"generation": 5, "members": ("n1-1", "n2-1")}
    found.report(report("n1", **trains))
    if fault == "starting":
        found.report(report("n2", **trains | {"left": 5, "starting": True}))
    found.orders()
    now[0] += TRAINING.returning + 1
    found.orders()
    found.report(report("n1", **trains | {"left": 5, "ready": True}))
    group = found.orders()["n1-1"].group
    assert group
    assert group.why == why
    told = "n2 has left it" if fault == "starting" else "n2 is lost"
    assert f"aborts group 5: {told}" in said


def test_a_group_that_waited_for_a_failed_worker_says_so() -> None:
    found = Decisions(lambda: 0.0, 2, 2)
    for name in ("n1", "n2"):
        found.report(report(name, ready=True))
    group = found.orders()["n1-1"].group
    assert group
    trains = {"generation": group.generation, "members": ("n1-1", "n2-1")}
    left = trains | {"left": group.generation}
    found.report(report("n1", **left | {"ready": True}))
    found.report(report("n2", **left | {"starting": True}))
    assert found.orders()["n1-1"].kind == "wait"
    found.report(report("n2", **left | {"ready": True}))
    group = found.orders()["n1-1"].group
    assert group
    assert group.why == "a worker of n2 failed"


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


def test_a_mistake_is_the_end_of_the_coordinator_too() -> None:
    found = Decisions(lambda: 0.0, 1, 2)
    assert not is_final(found)
    found.report(report("n1", halt=Halt("input", "no such model", 2)))
    found.orders()
    assert is_final(found)


@pytest.mark.parametrize("how", ["asks", "comes"])
def test_a_late_host_that_leaves_does_not_keep_the_coordinator(how: str) -> None:
    """Kubernetes ends such a host, as the Job is complete."""
    now = [0.0]
    found = Decisions(lambda: now[0], 1, 2)
    found.report(report("n1", ready=True))
    found.orders()
    now[0] += TRAINING.returning + TRAINING.warm_up
    assert found.orders()["n1-1"].kind == "join"
    assert found.patience == float("inf")
    found.report(report("n1", done=True))
    found.orders()
    found.lose("n1-1", "has ended")
    found.orders()
    found.report(report("n2", asks=how == "asks", starting=True))
    assert found.orders() == {"n2-1": Order()}
    assert not is_final(found)
    found.lose("n2-1", "has ended")
    assert found.orders() == {}
    assert (found.patience, is_final(found)) == (ABSENT, True)
    found.report(report("n3", ready=True))
    found.orders()
    now[0] += TRAINING.warm_up
    assert found.orders()["n3-1"].kind == "join"
    found.lose("n3-1", "is lost")
    found.orders()
    assert (found.patience, is_final(found)) == (float("inf"), False)


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
    assert is_final(found) is (how == "done")  # After another failure, engines start hosts again.
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


def test_a_worker_stands_still_only_if_it_does_nothing_for_long() -> None:
    patience = Patience()
    patience.note(Beat(1, 5), 100.0)
    assert not patience.doubtful(100.0 + pulse.DOUBTS)
    idle = [patience.exhausted(Activity(7.0), 100.0 + each) for each in range(5, 15)]
    assert idle == [False] * 7 + [True] * 3, "for LEAST seconds, once it is looked at"
    patience.note(Beat(1, 6), 115.0)
    assert not patience.doubtful(116.0)
    # Since it paused for 15 s before, a pause is unusual only after five times that.
    assert not patience.exhausted(Activity(7.0), 120.0)
    assert not patience.exhausted(Activity(7.0), 115.0 + 5 * 15)
    assert patience.exhausted(Activity(7.0), 116.0 + 5 * 15)


@pytest.mark.parametrize("activity", [Activity(7.0, disk=True), Activity(8.0)])
def test_a_worker_that_computes_or_reads_does_not_stand_still(activity: Activity) -> None:
    patience = Patience()
    patience.note(Beat(1, 5), 100.0)
    for number in range(60):
        found = activity._replace(seconds=activity.seconds * number if not activity.disk else 7.0)
        assert not patience.exhausted(found, 105.0 + number)


def test_the_pause_of_a_lost_group_makes_nobody_more_patient() -> None:
    patience = Patience()
    patience.note(Beat(1, 5), 100.0)
    patience.note(Beat(2, 0), 200.0)
    patience.note(Beat(2, 1), 201.0)
    assert patience.longest == 1.0


def test_who_was_left_and_goes_on_by_itself_is_left_less_soon() -> None:
    patience = Patience()
    patience.note(Beat(1, 5), 100.0)
    patience.learn(112.0)
    patience.note(Beat(2, 0), 112.1)
    assert not any(patience.exhausted(Activity(), 112.1 + each) for each in range(5, 60))
    assert patience.exhausted(Activity(), 112.1 + 61)


def test_the_pulse_of_a_process(tmp_path: Path) -> None:
    file = tmp_path / "pulse"
    assert pulse.read(file) == Beat()
    pulse.make(file)
    own = pulse.Pulse(str(file))
    own.begin(7)
    own.reach()
    own.end()
    own.reach()
    assert pulse.read(file) == Beat(7, 2, 1)


def test_what_a_process_and_its_children_do() -> None:
    busy = "sum(range(10**7))"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        before = pulse.look_at(os.getpid()).seconds
        wait_until(lambda: pulse.look_at(os.getpid()).seconds > before + 0.1, "a child computes")
    finally:
        process.communicate(b"\n")
    assert pulse.look_at(process.pid) == Activity()


@pytest.mark.parametrize(
    ("n1", "n2", "expected"),
    [
        ({"reached": (7, 7), "still": True}, {"reached": (6, 6), "still": True}, "n2 hangs"),
        ({"reached": (7, 7)}, {"reached": (6, 7), "still": True}, "n2 hangs"),
        ({"reached": (7, 7), "still": True}, {"reached": (6, 6)}, ""),  # It computes.
        ({"reached": (7, 7), "still": True}, {"reached": (7, 7), "still": True}, ""),
    ],
)
def test_who_hangs_is_known_by_what_it_has_not_reached(
    n1: dict[str, object], n2: dict[str, object], expected: str
) -> None:
    said: list[str] = []
    now = [100.0]
    found = Decisions(lambda: now[0], 2, 2, say=said.append)
    for name in ("n1", "n2"):
        found.report(report(name, ready=True))
    found.orders()
    group = found.group
    assert group
    members = tuple(each.agent for each in group.members)
    for name, more in (("n1", n1), ("n2", n2)):
        known = report(name, generation=group.generation, members=members, **more)
        found.report(decode(Report, encode(known)))
    assert {order.kind for order in found.orders().values()} == {"wait"}, "a report may be old"
    now[0] += TRAINING.confirm
    kinds = {order.kind for order in found.orders().values()}
    assert kinds == ({"abort"} if expected else {"wait"})
    assert any(expected in line for line in said if "aborts group" in line) == bool(expected)


def test_coordinators_whose_clock_is_behind_number_groups_by_chance() -> None:
    """Two that know as little as each other, one after the other: a host may have heard both."""
    numbers = []
    for chance in (3, 8):
        now = [100.0]
        found = Decisions(lambda: now[0], 1, 1, today=lambda: 2.0, chance=lambda: chance)  # noqa: B023
        found.report(report("n1", ready=True, left=5000))
        found.orders()
        now[0] += TRAINING.returning
        found.orders()
        assert found.group
        numbers.append(found.group.generation)
    assert numbers == [5004, 5009]
