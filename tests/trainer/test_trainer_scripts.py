"""Scripts of one's own on several hosts: what they notice of each other, and what they do then."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import Hosts, Task, descendants, hosts, stop, wait_until
from trainer.contract.events import Alone, Grouped, Silent
from trainer.group.messages import (
    HOST_SILENT,
    Group,
    Halt,
    MalformedError,
    Member,
    Order,
    Report,
    decode,
    encode,
)
from trainer.launcher.connections import ESTABLISHED, LISTENS, Connections, Socket, read_end
from trainer.launcher.rounds import (
    MAX_RESTARTS,
    ROUND_TIMES,
    SAME,
    SAME_KILLS,
    WINDOW,
    Faults,
    Rounds,
)
from trainer.launcher.silence import Quiet

SCRIPT = Path(__file__).with_name("steps.py")
SOON = 60.0
"""Seconds on a busy machine; gloo alone would wait for 30 minutes."""


# ---- The decisions


LAST_CALL, RETURN, STUCK = ROUND_TIMES.last_call, ROUND_TIMES.returning, ROUND_TIMES.stuck


@dataclass
class Meeting:
    """The coordinator' decisions, and agents that do what they are told at once."""

    now: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, Group | None] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    failures: dict[str, Halt] = field(default_factory=dict)
    least: int = 1
    most: int = 3
    spares: int = 0
    stuck: str = ""
    told: Order | None = None

    def __post_init__(self) -> None:
        self.decides = Rounds(lambda: self.now)

    def come(self, *names: str) -> None:
        """A container is started, with a new agent."""
        for name in names:
            self.states[name], self.rounds[name], self.left[name] = "idle", None, 0
            self.failures.pop(name, None)

    def leave(self, name: str) -> None:
        """A host has ended its workers."""
        if around := self.rounds[name]:
            self.left[name] = around.generation
        self.states[name], self.rounds[name] = "idle", None

    def report(self, name: str, **changes: Any) -> None:
        around = self.rounds[name]
        known = Report(
            name,
            name.partition("-")[0],
            1,
            f"{name}:1",
            port=2,
            generation=around.generation if around else self.left[name],
            members=tuple(each.agent for each in around.members) if around else (),
            number=around.number if around else 0,
            left=self.left[name],
            ready=self.states[name] == "idle",
            done=self.states[name] == "done",
            spare=name.startswith("s"),
            bounds=(self.least, self.most, self.spares),
            failure=self.failures.get(name),
        )
        self.decides.report(decode(Report, encode(replace(known, **changes))))

    def order(self, name: str) -> Order:
        return self.decides.orders()[name]

    def go_on(self, seconds: float = LAST_CALL + RETURN) -> None:
        """Let time go by; hosts report and obey."""
        for _ in range(int(seconds / 0.4)):
            self.now += 0.4
            for name in [*self.states]:
                self.report(name)
                if name != self.stuck:
                    self._obey(name, self.order(name))
            for name in {*self.decides.hosts} - {*self.states}:
                self.decides.lose(name, f"is silent for {HOST_SILENT} s")
            self.decides.orders()

    def _obey(self, name: str, order: Order) -> None:
        if order.kind == "join" and self.states[name] == "idle":
            self.failures.pop(name, None)
            self.states[name], self.rounds[name] = "runs", order.group
        elif order.kind == "abort":
            self.leave(name)
        elif order.kind == "end":
            self.decides.lose(name, "is gone")
            self.states.pop(name)
            self.rounds.pop(name)
            self.told = order

    def lose(self, name: str) -> None:
        del self.states[name], self.rounds[name]

    def fail(self, name: str, fault: str = "", code: int = 1) -> None:
        """The script fails on a host."""
        self.failures[name] = Halt("worker", "boom", code, fault=fault)
        self.leave(name)
        self.report(name)

    def run_together(self) -> list[str]:
        """The hosts of the one round that runs."""
        found = {around.generation: around for around in self.rounds.values() if around}
        assert len(found) == 1, found
        [around] = found.values()
        agents = [each.agent for each in around.members]
        assert {name for name, each in self.rounds.items() if each} == {*agents}
        return agents


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def test_hosts_above_the_minimum_are_waited_for_a_moment(meeting: Meeting) -> None:
    meeting.go_on(RETURN)
    meeting.come("n2")
    meeting.go_on(LAST_CALL / 2)
    assert meeting.rounds == {"n2": None}
    meeting.come("n1")
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2"]
    meeting.come("n3")
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2", "n3"]
    meeting.come("n4")  # More than the job wants.
    meeting.go_on()
    assert meeting.rounds["n4"] is None


def test_a_spare_takes_part_while_a_host_is_missing(meeting: Meeting) -> None:
    meeting.least, meeting.most, meeting.spares = 2, 2, 1
    meeting.come("s1", "n1")
    meeting.go_on(LAST_CALL / 2)
    assert not any(meeting.rounds.values())  # n2 may come yet.
    meeting.come("n2")
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2"]
    meeting.lose("n1")
    meeting.go_on()
    assert meeting.run_together() == ["n2", "s1"]
    meeting.come("n1")
    meeting.go_on()
    assert meeting.run_together() == ["n2", "s1"]


def test_a_new_rendezvous_begins_no_round_beside_a_spare_that_runs(meeting: Meeting) -> None:
    meeting.least, meeting.most, meeting.spares = 1, 1, 1
    meeting.come("s1")
    meeting.go_on()
    assert meeting.run_together() == ["s1"]
    states, meeting.states = meeting.states, {}
    meeting.decides = Rounds(lambda: meeting.now)
    meeting.come("n1")
    meeting.go_on(RETURN - 0.5)
    assert meeting.rounds["n1"] is None
    meeting.states |= states
    meeting.go_on()
    assert meeting.run_together() == ["s1"]


def test_the_loss_of_hosts_uses_up_no_restarts(meeting: Meeting) -> None:
    meeting.come("n1", "n2", "n3")
    meeting.go_on()
    for turn in range(2 * MAX_RESTARTS):
        lost = f"n{turn}"
        meeting.come(lost)
        meeting.go_on()
        meeting.fail("n2")  # Its peer's connection was closed.
        meeting.lose(lost)
        meeting.go_on()
        if lost == "n2":
            meeting.come("n2")
            meeting.go_on()
        assert "n2" in meeting.run_together()


def test_a_script_that_fails_here_and_there_ends_after_its_restarts(meeting: Meeting) -> None:
    meeting.least = 2
    meeting.come("n1", "n2")
    meeting.go_on()
    for turn in range(MAX_RESTARTS + 1):
        assert meeting.run_together() == ["n1", "n2"]
        meeting.fail("n1", f"ValueError (train.py:{turn})")
        meeting.go_on()
    told = Halt("worker", "boom", 1, "n1", fault=f"ValueError (train.py:{MAX_RESTARTS})")
    assert meeting.told == Order("end", halt=told)
    assert [*meeting.states] == ["n2"]
    # Its container is started again, and begins again.
    meeting.come("n1")
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2"]
    # The last failure is known in new containers, too, until the script goes on.
    failure = meeting.order("n1").failure
    assert failure
    assert failure.message == "boom"
    meeting.come("n3")
    meeting.go_on()
    assert meeting.order("n1").failure is None


PLACE = "ValueError (train.py:10)"


@pytest.mark.parametrize(
    ("fault", "code", "starts"),
    [
        (PLACE, 1, SAME),
        ("exit code 3", 1, SAME),
        ("SIGSEGV", 1, SAME),
        ("ImportError (train.py:1)", 2, 1),
    ],
)
@pytest.mark.parametrize("least", [1, 2])
def test_a_fault_of_the_program_ends_the_hosts_that_have_it(
    fault: str, code: int, starts: int, least: int, meeting: Meeting
) -> None:
    meeting.least = least
    meeting.come("n1", "n2")
    meeting.go_on()
    for _ in range(starts):
        assert meeting.run_together() == ["n1", "n2"]
        meeting.fail("n1", fault, code)
        meeting.go_on()
    assert meeting.told
    assert meeting.told.halt
    assert meeting.told.halt.code == 2
    # The others go on, if the job allows it.
    assert [*meeting.states] == ["n2"] * (least == 1)
    # The engine starts the containers again, as new agents.
    meeting.decides.report(Report("again", "n1", 1, ready=True, bounds=(least, 3, 0)))
    order = meeting.order("again")
    assert order.kind == "end"
    assert order.halt
    assert order.halt.host == "n1"
    assert order.halt.message.startswith("boom")


def test_a_checkpoint_of_any_host_is_progress(meeting: Meeting) -> None:
    meeting.least = 2
    meeting.come("n1", "n2")
    meeting.go_on()
    for turn in range(SAME + 1):
        assert meeting.run_together() == ["n1", "n2"]
        if turn == 1:
            meeting.report("n2", content="5d41402a")
        # Each further failure of a round is a consequence.
        meeting.fail("n2", PLACE)
        meeting.fail("n1", PLACE)
        meeting.go_on()
    assert [*meeting.states] == []


@pytest.mark.parametrize(
    ("story", "watched", "found"),
    [
        ("FF", True, False),
        ("FFF", True, True),
        ("FGFG", True, False),
        ("FGFGF", True, True),
        ("FFaFF", True, False),
        ("FFaFFF", True, True),
        # It begins anew each time, and saves the same: no progress.
        ("abFabFabF", True, True),
        ("F F F", True, True),
        # Nobody knows what it has saved: within an hour, it would not get far.
        ("F F F", False, False),
        ("FFF", False, True),
        ("K" * (SAME_KILLS - 1), True, False),
        ("K" * SAME_KILLS, True, True),
    ],
)
def test_failures_at_a_place_count_from_the_last_checkpoint_on(
    story: str, watched: bool, found: bool
) -> None:
    now, last = 0.0, ""
    faults = Faults(lambda: now)
    places = {"F": PLACE, "G": "ValueError (train.py:11)", "K": "SIGKILL"}
    for letter in story:
        if letter == " ":
            now += WINDOW
        elif letter in places:
            last = faults.count([places[letter]], watched=watched)
        else:
            faults.note(letter)
    assert bool(last) is found


def test_a_host_whose_workers_do_not_end_is_left_out(meeting: Meeting) -> None:
    meeting.come("n1", "n2")
    meeting.go_on()
    meeting.stuck = "n2"
    meeting.fail("n1")
    meeting.go_on(STUCK - 1)
    assert not meeting.rounds["n1"]
    meeting.go_on()
    around = meeting.rounds["n1"]
    assert around
    assert around.names == "n1"


def test_a_minimum_is_waited_for(meeting: Meeting) -> None:
    meeting.least = 2
    meeting.come("n1", "n2")
    meeting.go_on()
    meeting.lose("n2")
    meeting.go_on()
    assert meeting.rounds == {"n1": None}
    meeting.come("n2")
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2"]


def test_a_new_rendezvous_finds_the_round_that_runs(meeting: Meeting) -> None:
    meeting.come("n1", "n2")
    meeting.go_on()
    before = meeting.rounds["n1"]
    meeting.decides = Rounds(lambda: meeting.now)
    meeting.go_on()
    assert meeting.rounds["n1"] == before
    # One was lost together with the coordinator, and is back as another agent.
    meeting.decides = Rounds(lambda: meeting.now)
    meeting.lose("n2")
    meeting.come("n2-again")
    meeting.go_on(20)
    assert meeting.run_together() == ["n1", "n2-again"]
    # It knows the numbers of old rounds: a host of one does not go on with it.
    assert meeting.rounds["n1"]
    assert meeting.rounds["n1"].number > 1


def test_a_new_rendezvous_begins_no_second_round_beside_one_that_runs(meeting: Meeting) -> None:
    meeting.come("n1", "n2")
    meeting.go_on()
    states, meeting.states = meeting.states, {}
    meeting.decides = Rounds(lambda: meeting.now)
    meeting.come("n3")  # It is there before the others find the new rendezvous.
    meeting.go_on(RETURN - 0.5)
    assert meeting.rounds["n3"] is None
    meeting.states |= states
    meeting.go_on()
    assert meeting.run_together() == ["n1", "n2", "n3"]


def test_a_host_that_missed_the_end_does_not_begin_again(meeting: Meeting) -> None:
    meeting.come("n1", "n2")
    meeting.go_on()
    late = meeting.rounds["n2"]
    meeting.lose("n2")
    meeting.states["n1"] = "done"
    meeting.go_on()
    assert meeting.told == Order("end")
    meeting.told = None
    meeting.states["n2"], meeting.rounds["n2"] = "runs", late
    meeting.go_on()
    assert meeting.told == Order("end")


@pytest.mark.parametrize(
    "changes",
    [
        {"agent": 7},
        {"workers": "1"},
        {"ready": 1},
        {"members": "n1"},
        {"members": [1]},
        {"bounds": [1, 2]},
        {"bounds": [1, 2, "3"]},
        {"failure": {"kind": "worker"}},
        {"failure": ["worker"]},
    ],
)
def test_what_is_no_report_is_refused(changes: dict[str, Any]) -> None:
    good = json.loads(encode(Report("n1-1", "n1", 1)))
    assert decode(Report, json.dumps(good).encode()) == Report("n1-1", "n1", 1)
    with pytest.raises(MalformedError):
        decode(Report, json.dumps({**good, **changes}).encode())


# ---- Real processes


@dataclass
class Cluster:
    """Hosts that run a script."""

    local: Hosts
    nnodes: str
    endpoint: str
    tasks: dict[str, Task] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        job = self.local.folder / "own.json"
        job.write_text(json.dumps({"name": "own", "command": [str(SCRIPT)]}))
        for name in names:
            self.tasks[name] = self.local.agent(
                name, job, self.endpoint, 1, self.nnodes, STEPS=self.local.folder
            )

    def serve(self) -> Task:
        return self.local.serve(self.endpoint, script=True)

    def last(self, name: str) -> tuple[int, int]:
        """The newest process of the script on a host, and the size of its world."""
        files = [*self.local.folder.glob(f"{name}-*.jsonl")]
        lines = {file: file.read_text().splitlines() for file in files}
        times = {file: json.loads(each[-1]) for file, each in lines.items() if each}
        if not times:
            return 0, 0
        newest = max(times, key=lambda file: float(times[file][0]))
        return int(newest.stem.rpartition("-")[2]), int(times[newest][1])

    def steps(self, name: str) -> int:
        lines = (file.read_text() for file in self.local.folder.glob(f"{name}-*.jsonl"))
        return sum(text.count("\n") for text in lines)

    def wait_for(self, size: int, *names: str) -> None:
        """Wait until some hosts take steps together."""
        before = {name: self.steps(name) for name in names}

        def there() -> bool:
            return all(
                self.last(name)[1] == size and self.steps(name) > before[name] for name in names
            )

        wait_until(there, f"steps of {size}", SOON)

    @property
    def round(self) -> int:
        """The last round; a host that starts late is not in the first."""
        return int(re.findall(r"begins round (\d+) ", self.local.tasks[0].text)[-1])

    def silence(self, *tasks: Task) -> Callable[[], None]:
        first = [task.process.pid for task in tasks]
        return stop([*first, *(pid for each in first for pid in descendants(each))])


@contextmanager
def running(
    folder: Path, nnodes: str, names: list[str], *, cold: bool = False
) -> Iterator[Cluster]:
    with hosts(folder, cold=cold) as local:
        cluster = Cluster(local, nnodes, local.rendezvous(script=True))
        cluster.start(*names)
        cluster.wait_for(len(names), *names)
        yield cluster


def test_a_silent_host_is_lost_and_returns(tmp_path: Path) -> None:
    with running(tmp_path, "1:3", ["n1", "n2", "n3"]) as cluster:
        rendezvous = cluster.local.tasks[0]
        begun, aborted = cluster.round, rendezvous.text.count("aborts round")
        # A step of 2.5 s: longer than a host may be silent.
        busy = tmp_path / "busy"
        busy.touch()
        before = cluster.steps("n1")
        wait_until(lambda: cluster.steps("n1") > before + 1, "a long step", SOON)
        busy.unlink()
        assert rendezvous.text.count("aborts round") == aborted
        stale, _ = cluster.last("n3")
        go_on = cluster.silence(cluster.tasks["n3"])
        cluster.wait_for(2, "n1", "n2")
        assert f"aborts round {begun}: n3 is silent for " in rendezvous.text
        go_on()
        cluster.wait_for(3, "n1", "n2", "n3")
        assert not Path(f"/proc/{stale}").exists()
        assert cluster.last("n3")[0] != stale
        assert "n3 joins" in rendezvous.text
        # The host of the coordinator and of rank 0 loses its power, and is back.
        begun = cluster.round
        silent = (rendezvous, cluster.tasks["n1"])
        cluster.silence(*silent)
        cluster.tasks["n2"].expect("the coordinator does not answer")
        for task in silent:
            task.end()
        again = cluster.serve()
        cluster.start("n1")
        cluster.wait_for(3, "n1", "n2", "n3")
        # It knows the round that they were in, also if they have left it by then: those two may
        # begin the next one alone, if n1 starts late.
        later = f"begins round ({begun + 1}|{begun + 2})"
        assert re.search(f"(found the running round {begun}|{later}) with n1, n2, n3", again.text)


def test_all_hosts_end_well_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "few").touch()
    with running(tmp_path, "3:3", ["n1", "n2", "n3"]) as cluster:
        for task in cluster.tasks.values():
            assert task.wait() == 0
            assert re.search(r": round \d+ with n1, n2, n3$", task.text.rstrip())
        cluster.local.tasks[0].expect(" has succeeded")


def test_a_job_waits_for_the_hosts_that_it_needs(tmp_path: Path) -> None:
    with running(tmp_path, "2:2", ["n1", "n2"]) as cluster:
        cluster.tasks["n2"].end()
        ends = re.compile("stops its workers: n2 has closed|failed first on this host")
        wait_until(lambda: bool(ends.search(cluster.tasks["n1"].text)), "the end of the round")
        wait_until(lambda: not cluster.tasks["n1"].workers("steps.py"), "their end", SOON)
        cluster.start("n2")
        cluster.wait_for(2, "n1", "n2")
        if "stops its workers" in cluster.tasks["n1"].text:
            assert "has failed" not in cluster.local.tasks[0].text


def test_a_script_goes_on_without_its_rendezvous(tmp_path: Path) -> None:
    with running(tmp_path, "1:2", ["n1", "n2"]) as cluster:
        before, begun = cluster.last("n1"), cluster.round
        cluster.local.tasks[0].end()
        cluster.tasks["n1"].expect("the coordinator does not answer")
        cluster.wait_for(2, "n1", "n2")
        again = cluster.serve()
        again.expect(f"found the running round {begun} with n1, n2")
        cluster.wait_for(2, "n1", "n2")
        assert cluster.last("n1") == before
        # It watches them as the first did.
        cluster.tasks["n2"].end()
        cluster.wait_for(1, "n1")


@pytest.mark.parametrize(
    ("how", "nnodes", "told"),
    [
        pytest.param(
            "loads",
            "2:2",
            "this host is in no process group with other hosts",
            marks=pytest.mark.long,
        ),
        ("alone", "1:1", "no two processes of this job are in a process group"),
    ],
)
def test_processes_that_train_alone_are_told(
    how: str, nnodes: str, told: str, tmp_path: Path
) -> None:
    job, script = tmp_path / "own.json", Path(__file__).with_name("apart.py")
    job.write_text(json.dumps({"name": "own", "command": [str(script), how]}))
    more: dict[str, Any] = {"FOLDER": tmp_path, "KIT_GROUP_TIMEOUT": "1"}
    with hosts(tmp_path, cold=True) as local:
        endpoint, number = local.rendezvous(nnodes, script=True), int(nnodes[-1])
        tasks = [
            local.agent(f"n{index}", job, endpoint, 2 // number, nnodes, **more)
            for index in range(number)
        ]
        for task in tasks:
            task.expect(told)
        wait_until(lambda: all(task.of(Alone) for task in tasks), "the events")
        (tmp_path / "go").touch()
        for task in tasks:
            task.expect("the processes of this job have formed a group")
        wait_until(lambda: all(task.of(Grouped) for task in tasks), "the events")
        (tmp_path / "end").touch()
        for task in tasks:
            assert task.wait() == 0
            assert task.text.count(told) == 1


# ---- Ranks that do nothing

HANGS = """\
import os, signal, sys, time
import torch
from torch import distributed

sys.stdout.write(f"own module {sys.modules['sitecustomize'].own}\\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
distributed.init_process_group("gloo")
rank = distributed.get_rank()

def sleeps_in_a_child():
    if os.fork() == 0:
        while not os.path.exists("go"):
            time.sleep(0.1)
        os._exit(0)
    os.wait()

if rank == 1:
    sleeps_in_a_child()
    print("goes on", flush=True)
    began = time.time()
    while time.time() < began + 1:
        pass
distributed.all_reduce(torch.ones(1))
"""


def test_ranks_that_do_nothing_are_told_with_their_stacks(tmp_path: Path) -> None:
    job, script, own = tmp_path / "own.json", tmp_path / "hangs.py", tmp_path / "packages"
    script.write_text(HANGS)
    own.mkdir()
    (own / "sitecustomize.py").write_text("own = 'runs too'\n")
    job.write_text(json.dumps({"name": "own", "command": [str(script)], "quiet": 4}))
    with hosts(tmp_path, cold=True) as local:
        endpoint = local.rendezvous("1:1", script=True)
        task = local.agent("n1", job, endpoint, 2, "1:1", PYTHONPATH=own)
        task.expect("own module runs too")
        wait_until(lambda: {each.rank for each in task.of(Silent)} == {0, 1}, "both ranks", SOON)
        # The one that hangs in a child, the child, and the one that waits for them.
        task.expect("line 15 in sleeps_in_a_child")
        task.expect("line 13 in sleeps_in_a_child")
        task.expect("in all_reduce")
        (tmp_path / "go").touch()
        assert task.wait() == 0
        assert all(each.seconds >= 4 for each in task.of(Silent))


@pytest.mark.parametrize(
    ("looks", "silent"),
    [
        # Seconds on a processor, the time of the last line, and whether the GPU works.
        ([(1.0, 5.0, False)] * 4, 30.0),
        ([(1.0, 5.0, False), (1.0, 5.0, False), (1.0, 6.0, False), (1.0, 6.0, False)], 10.0),
        ([(1.0, 5.0, False), (1.0, 5.0, False), (1.0, 5.0, True), (1.0, 5.0, False)], 10.0),
        ([(1.0, 5.0, False), (2.0, 5.0, False), (3.0, 5.0, False), (4.0, 5.0, False)], 0.0),
        # Threads that wake up now and then.
        ([(1.0, 5.0, False), (1.1, 5.0, False), (1.3, 5.0, False), (1.4, 5.0, False)], 30.0),
        # A child has ended, and nobody has waited for it.
        ([(9.0, 5.0, False), (1.0, 5.0, False), (1.0, 5.0, False), (1.0, 5.0, False)], 30.0),
    ],
)
def test_what_counts_as_doing_something(
    looks: list[tuple[float, float, bool]], silent: float
) -> None:
    quiet = Quiet(0.0)
    for turn, (cpu, heard, gpu) in enumerate(looks):
        found = quiet.look(turn * 10.0, cpu, heard, gpu=gpu)
    assert found == silent


# ---- Which sockets make a group

OTHER, OWN, PORT = "10.0.1.7", "10.0.1.6", 40001


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("0100007F:1F90", ("127.0.0.1", 8080)),
        ("0000000000000000FFFF00000601000A:9C41", ("10.0.1.6", 40001)),
        ("B80D01200000000067452301EFCDAB89:0016", ("2001:db8::123:4567:89ab:cdef", 22)),
    ],
)
def test_addresses_are_read_as_the_kernel_writes_them(text: str, end: tuple[str, int]) -> None:
    assert read_end(text) == end


def sockets(*ends: tuple[str, int, str, int, int], state: str = ESTABLISHED) -> list[Socket]:
    return [
        Socket((here, at), (there, to), state, str(inode)) for here, at, there, to, inode in ends
    ]


STORE = (OWN, 50000, OWN, PORT, 1), (OWN, PORT, OWN, 50000, 2)
"""Both ends of a connection inside the host."""


@pytest.mark.parametrize(
    ("several", "rank", "found", "owners", "joined"),
    [
        # One host: its ranks are connected, or each with itself, or with the world.
        (False, 0, sockets(*STORE), {"1": 11, "2": 10}, True),
        (False, 0, sockets(*STORE), {"1": 10, "2": 10}, False),
        (False, 0, sockets((OWN, 50000, "151.101.0.223", 443, 1)), {"1": 10}, False),
        (False, 0, sockets(*STORE, state="06"), {"1": 11, "2": 10}, False),
        # Several hosts: a group inside a host is not enough, the store of the first is.
        (True, 0, sockets(*STORE), {"1": 11, "2": 10}, False),
        (True, 0, sockets((OWN, PORT, "172.18.0.1", 50000, 1)), {"1": 10}, True),
        (True, 1, sockets((OWN, 50000, OTHER, PORT, 1)), {"1": 10}, True),
        (True, 1, sockets((OWN, 50000, OTHER, 33333, 1)), {"1": 10}, True),
        (True, 1, sockets((OWN, 50000, OTHER, PORT, 1)), {}, False),
        (True, 1, sockets((OWN, 50000, "151.101.0.223", 443, 1)), {"1": 10}, False),
        # Each host is rank 0 of a world of its own, and connects to the address that it was given.
        (
            True,
            1,
            [
                *sockets(("0.0.0.0", PORT, "0.0.0.0", 0, 2), state=LISTENS),
                *sockets((OWN, 50000, OTHER, PORT, 1)),
            ],
            {"1": 10, "2": 10},
            False,
        ),
    ],
)
def test_a_group_is_known_by_its_connections(
    several: bool, rank: int, found: list[Socket], owners: dict[str, int], joined: bool
) -> None:
    hosts = [OWN, OTHER] if several else [OWN]
    hosts = hosts if rank == 0 else hosts[::-1]
    members = tuple(Member(each, each, f"{each}:1", 1, PORT) for each in hosts)
    assert Connections(Group(1, members), rank, 60).joined(found, owners) is joined
