"""Jobs that end by themselves: after their time, or because no host computes anything."""

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.runtime.events import Reader
from kit.runtime.status import LogLine
from tests.trainer.hosts import (
    ENDLESS,
    Hosts,
    Task,
    complete_steps,
    hosts,
    wait_until,
    write_job,
)
from tests.trainer.interleavings import Cluster, Host
from trainer.contract.events import Member, Progress, Stopped
from trainer.contract.limit_events import Idle, Limit
from trainer.group.decisions import ABSENT, Decisions
from trainer.group.messages import Order, Report, decode, encode
from trainer.launcher import limits
from trainer.launcher.last_failure import ask
from trainer.launcher.limits import LimitWatch, Work, spoken
from trainer.launcher.rounds import REMEMBERED, Rounds
from trainer.launcher.settings import Job, parse_endpoint

HOUR = 3600

# ---- The decisions


class Coordinator:
    """The decisions of a coordinator, and its clock."""

    def __init__(self, kind: type[Decisions] = Decisions) -> None:
        self.now, self._kind = 0.0, kind
        self.replace()

    def replace(self) -> None:
        """Another one takes its place, and knows nothing."""
        self.decides = self._kind(lambda: self.now, 1, 3)

    def hear(self, name: str, start: int = 1, **more: Any) -> None:
        """Hear of a host, whose container has started so often."""
        report = Report(f"{name}-{start}", name, 1, f"{name}:1", **more)
        self.decides.report(decode(Report, encode(report)))

    @property
    def told(self) -> Order:
        """What it tells each host of the time."""
        return decode(Order, encode(self.decides.timed(Order())))


def test_the_time_of_a_run_counts_from_the_first_start_of_a_host() -> None:
    one = Coordinator()
    one.hear("n1", ran=40.0)
    one.hear("n2", ran=0.0)
    one.now += 10
    assert one.told.ran == 50
    one.replace()
    assert one.told.ran == 0
    one.hear("n2", ran=50.0)
    assert one.told.ran == 50
    # Its container fails, is started again, and prepares itself.
    one.decides.lose("n2-1", "has closed its connection")
    one.now += 30
    one.hear("n2", 2, asks=True, starting=True)
    one.decides.lose("n2-2", "has closed its connection")
    one.hear("n2", 3, ran=0.0)
    assert one.told.ran == 80
    # All are asked to end, as by a deploy: the next ones are another run.
    one.hear("n2", 3, ran=None, leaving=True)
    one.decides.lose("n2-3", "has closed its connection")
    one.hear("n2", 4, asks=True, starting=True)
    one.hear("n2", 5, ran=2.0)
    assert one.told.ran == 2


def test_a_job_is_idle_if_all_of_its_hosts_are() -> None:
    one = Coordinator()
    # A spare, which a new coordinator hears of first.
    one.hear("n3", idle=5000.0)
    assert one.told.idle == 0
    one.now = 100
    one.hear("n3", idle=5100.0)
    one.hear("n1", idle=2.0)
    assert one.told.idle == 2
    one.decides.lose("n1-1", "is lost")
    one.now = 150
    assert one.told.idle == 52
    # One that fetches its data does something.
    one.hear("n2", asks=True, starting=True, idle=0.0)
    one.decides.lose("n2-1", "has closed its connection")
    one.now = 160
    assert one.told.idle == 10
    # The coordinator stands still for an hour, and what it knows is old.
    one.hear("n1", 2, idle=1.0)
    one.now += HOUR
    assert one.told.idle == 1


def test_a_training_that_ends_by_itself_leaves_its_group_and_saves() -> None:
    one = Coordinator()
    for name in ("n1", "n2", "n3"):
        one.hear(name, ready=True, ran=0.0)
    groups = [order.group for order in one.decides.orders().values()]
    assert groups[0]
    group = groups[0].generation
    members = tuple(each.agent for each in groups[0].members)
    state: dict[str, Any] = {"generation": group, "members": members, "ran": 100.0}
    for name in ("n1", "n2", "n3"):
        one.hear(name, **state)
    one.hear("n2", **state, ends="max_duration", leaving=True)
    leave = Order("leave", group, save=True, ends="max_duration")
    assert one.decides.orders() == dict.fromkeys(members, leave)
    # Nobody trains on, and a container that is started again ends, too.
    for name in ("n1", "n2", "n3"):
        one.hear(name, **{**state, "left": group}, ready=True)
    one.decides.lose("n2-1", "has closed its connection")
    one.hear("n2", 2, ready=True, ran=0.0)
    one.now += 60
    assert set(one.decides.orders().values()) == {Order(ends="max_duration")}
    assert one.decides.patience == ABSENT


def test_hosts_of_a_script_that_ends_by_itself_are_not_cut_short() -> None:
    one = Coordinator(Rounds)
    for name in ("n1", "n2"):
        one.hear(name, ready=True, ran=0.0, bounds=(1, 2, 0))
    one.now += 20
    groups = [order.group for order in one.decides.orders().values()]
    assert groups[0]
    members = tuple(each.agent for each in groups[0].members)
    state: dict[str, Any] = {
        "generation": groups[0].generation,
        "members": members,
        "bounds": (1, 2, 0),
    }
    for name in ("n1", "n2"):
        one.hear(name, **state, ran=20.0)
    assert one.decides.patience == REMEMBERED
    one.hear("n1", **state, ran=20.0, ends="idle")
    assert set(one.decides.orders().values()) == {Order(ends="idle")}
    one.decides.lose("n1-1", "has closed its connection")
    assert one.decides.orders()["n2-1"].ends == "idle"
    assert one.decides.patience == ABSENT


class Limited(Cluster):
    """A training whose hosts end together; one that leaves has reached a limit."""

    def report(self, host: Host) -> Report:
        return replace(super().report(host), ends="idle" if host.leaving else "")

    def obey(self, host: Host) -> None:
        host.leaving |= decode(Order, host.orders[0]).ends == "idle"
        super().obey(host)

    def faults(self) -> list[Callable[[Host], None]]:
        return [self.kill_worker, self.lose_host, self.cut]


@pytest.mark.parametrize("seed", range(6))
def test_all_hosts_end_in_any_order_of_messages_and_faults(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Limited(draw, hosts=3, least=draw.choice((1, 2)), spares=draw.choice((0, 1)))
    for turn in range(200):
        if turn > 60 and draw.random() < 0.04:
            cluster.fault()
        draw.choice(cluster.events())()
    draw.choice(cluster.hosts).leaving = True
    for _ in range(30):
        draw.choice(cluster.events())()
    for host in [*cluster.hosts]:
        host.cut = False
        if not host.alive:
            cluster.replace_host(host)
    cluster.hosts[0].leaving = True
    began = cluster.now
    while cluster.now < began + 60:
        cluster.fair_turn()
    assert [host.name for host in cluster.hosts if host.meeting or not host.leaving] == []


# ---- What a host knows


def test_a_host_ends_by_its_own_clock_and_by_that_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job("j", (), max_duration=HOUR, idle=600)
    watch = LimitWatch(job, {"KIT_RUN_SINCE": str(time.monotonic() - 100)})
    assert watch.reached(Order()) == ""
    assert watch.reached(Order(ends="idle")) == "idle"
    assert watch.reached(Order(idle=600.0)) == "idle"
    watch.learn(Order(ran=HOUR - 100.0))
    assert watch.reached(Order()) == ""
    report = watch.timed(Report("n1-1", "n1", 1), stopped=False)
    assert report.ran is not None
    assert HOUR - 100 <= report.ran < HOUR
    # One that was asked to end has no part in it any more.
    assert watch.timed(report, stopped=True).ran is None
    watch.learn(Order(ran=HOUR + 0.0))
    assert watch.reached(Order()) == "max_duration"
    assert not capsys.readouterr().err
    for idle in (299.0, 300.0, 420.0, 0.0, 1.0, 301.0):
        watch.learn(Order(idle=idle))
    said = capsys.readouterr()
    assert said.err.count("no host has computed anything for 5 min: the job ends after 10 min") == 2
    assert said.out.count("a host computes again") == 1
    without = LimitWatch(Job("j", ()), {})
    assert without.reached(Order(ran=1e9, idle=1e9)) == ""
    assert without.timed(Report("n1-1", "n1", 1), stopped=False) == Report("n1-1", "n1", 1)


@pytest.mark.parametrize(
    ("shares", "works", "busy"),
    [
        ("GPU-a, 0\nGPU-b, 0", True, False),
        ("GPU-a, 0\nGPU-b, 37", False, True),
        ("GPU-a, 1\nGPU-c, 99", True, False),  # The last one belongs to another container.
        # Where no GPU tells it, the processor does.
        ("GPU-a, [N/A]", True, True),
        ("GPU-a, [N/A]", False, False),
        ("", True, True),
    ],
)
def test_gpus_tell_whether_a_host_computes(
    shares: str, works: bool, busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{shares}\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seconds = itertools.count(0, HOUR)
    monkeypatch.setattr(limits, "cpu_seconds", lambda _pid: float(next(seconds)))
    work, ranks = Work("GPU-a,GPU-b"), [os.getpid()] if works else []
    work.look(ranks, "a place")
    work._last -= HOUR
    work.look(ranks, "a place")
    assert (work.idle < HOUR) is busy
    # Steps that are taken count in any case.
    work._last -= HOUR
    work.look([], "another place")
    assert work.idle < HOUR


def test_times_are_written_for_people() -> None:
    times = (20, 90, 1800, 5400, 43200, 45000)
    assert [spoken(each) for each in times] == [
        "20 s",
        "90 s",
        "30 min",
        "90 min",
        "12 h",
        "12 h 30 min",
    ]


# ---- Real processes


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path) as found:
        yield found


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts whose processes are their own: the time on a processor is theirs."""
    with hosts(tmp_path, cold=True) as found:
        yield found


def ask_coordinator(endpoint: str, **more: Any) -> Order:
    """Ask as a host that prepares itself."""
    settings: Any = SimpleNamespace(rendezvous=parse_endpoint(endpoint))
    while True:
        with suppress(TimeoutError):  # It is late.
            return ask(settings, Report("n9-1", "n9", 0, starting=True, asks=True, **more))


def told(tasks: dict[str, Task]) -> Reader:
    """What kit reads in the logs of hosts."""
    reader = Reader()
    reader.read_logs(
        LogLine("j", name, line.partition("]: ")[2] if line.startswith("[rank") else line)
        for name, task in tasks.items()
        for line in task.log.read_text().splitlines()
    )
    return reader


def test_a_training_saves_and_ends_after_its_time(tmp_path: Path, local: Hosts) -> None:
    job = write_job(tmp_path, **ENDLESS, every_epochs=9999)
    job.write_text(json.dumps({**json.loads(job.read_text()), "max_duration": HOUR}))
    endpoint = local.rendezvous()
    tasks = {
        name: local.agent(name, job, endpoint, each) for name, each in (("pc1", 1), ("pc2", 2))
    }
    wait_until(lambda: any(task.of(Progress) for task in tasks.values()), "steps")
    assert 0 < ask_coordinator(endpoint).ran < HOUR
    # The run is an hour old, as a host knows that comes late.
    ask_coordinator(endpoint, ran=float(HOUR))
    assert {name: task.wait() for name, task in tasks.items()} == {"pc1": 0, "pc2": 0}
    # A container that is started again would end at once.
    assert ask_coordinator(endpoint).ends == "max_duration"
    for task in tasks.values():
        assert [(each.key, each.seconds) for each in task.of(Limit)] == [("max_duration", HOUR)]
        assert "has ended: 1 h passed since the first start" in task.text
    [stopped] = [each for task in tasks.values() for each in task.of(Stopped)]
    assert stopped.checkpoint in complete_steps(tmp_path / "pc1")
    reader = told(tasks)
    assert reader.limit == f"ended after its max_duration of 60 min, saved at step {stopped.step:,}"


def test_a_training_that_waits_for_hosts_is_idle(tmp_path: Path, local: Hosts) -> None:
    job = write_job(tmp_path)
    job.write_text(json.dumps({**json.loads(job.read_text()), "idle": 3}))
    task = local.agent("pc1", job, local.rendezvous("2:2"), 1)
    assert task.wait() == 0
    assert {each.limit for each in task.of(Idle)} == {3}
    assert task.of(Idle)[-1].seconds >= 1.5
    assert [each.key for each in task.of(Limit)] == ["idle"]
    assert not task.of(Member)
    assert told({"pc1": task}).limit == "ended: it computed nothing for 3 s, its GPUs are free"


SCRIPT = """\
import os, signal, sys, time
from pathlib import Path

folder, host = Path(os.environ["FOLDER"]), os.environ["KIT_HOST"]

def end(*_):
    if host == "n2":
        while not (folder / "n1-has-ended").exists():
            time.sleep(0.05)
        time.sleep(3)  # Longer than the end of a round may take.
    (folder / f"{host}-saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
(folder / f"{host}-up").touch()
while True:
    # All of a core, of which a busy machine gives it a part.
    if host != "n1" or not (folder / "busy").exists():
        time.sleep(0.1)
"""


def start_script(cold: Hosts, **limits: Any) -> tuple[str, dict[str, Task]]:
    """Start a script on two hosts, by itself: PyTorch would take most of the time."""
    (cold.folder / "packages").mkdir()
    (cold.folder / "packages" / "tensorflow.py").touch()
    (cold.folder / "script.py").write_text(SCRIPT)
    job = cold.folder / "own.json"
    content = {"name": "own", "framework": "tensorflow", "command": ["script.py"], **limits}
    job.write_text(json.dumps(content))
    endpoint, packages = cold.rendezvous(script=True), cold.folder / "packages"
    tasks = {
        name: cold.agent(name, job, endpoint, 1, "2:2", FOLDER=cold.folder, PYTHONPATH=packages)
        for name in ("n1", "n2")
    }
    up = [cold.folder / f"{name}-up" for name in tasks]
    wait_until(lambda: all(each.exists() for each in up), "the script on both hosts")
    return endpoint, tasks


def test_a_script_has_its_grace_after_its_time(tmp_path: Path, cold: Hosts) -> None:
    endpoint, tasks = start_script(cold, max_duration=HOUR)
    ask_coordinator(endpoint, ran=float(HOUR))
    assert tasks["n1"].wait() == 0
    (tmp_path / "n1-has-ended").touch()
    assert tasks["n2"].wait() == 0
    for name, task in tasks.items():
        assert (tmp_path / f"{name}-saved").exists()
        assert [each.key for each in task.of(Limit)] == ["max_duration"]


def test_a_script_that_does_not_end_is_killed_after_its_grace(tmp_path: Path, cold: Hosts) -> None:
    endpoint, tasks = start_script(cold, max_duration=HOUR, stop_grace_period=1)
    ask_coordinator(endpoint, ran=float(HOUR))
    assert {name: task.wait() for name, task in tasks.items()} == {"n1": 0, "n2": 0}
    assert "have had their stop_grace_period" in tasks["n2"].text
    assert not (tmp_path / "n2-saved").exists()


def test_a_script_is_idle_if_no_host_computes(tmp_path: Path, cold: Hosts) -> None:
    (tmp_path / "busy").touch()
    (tmp_path / "n1-has-ended").touch()
    endpoint, tasks = start_script(cold, max_duration=HOUR, idle=8)  # Longer than a start.
    began = ask_coordinator(endpoint).ran
    wait_until(lambda: ask_coordinator(endpoint).ran > began + 9, "longer than that time")
    assert {name: task.process.poll() for name, task in tasks.items()} == {"n1": None, "n2": None}
    (tmp_path / "busy").unlink()
    for name, task in tasks.items():
        assert task.wait() == 0
        assert [each.key for each in task.of(Limit)] == ["idle"]
        assert "warning: no host has computed anything for " in task.text
        assert (tmp_path / f"{name}-saved").exists()


def test_the_time_also_ends_a_setup(tmp_path: Path, cold: Hosts) -> None:
    (tmp_path / "script.py").write_text("")
    job = tmp_path / "own.json"
    setup = ["touch began", "exec sleep 600"]
    content = {"name": "own", "command": ["script.py"], "setup": setup, "max_duration": 5}
    job.write_text(json.dumps(content))
    task = cold.agent("n1", job, "127.0.0.1:9", 1, "1:1")  # Where nobody answers.
    assert task.wait() == 0
    assert (tmp_path / "began").exists()
    assert [each.key for each in task.of(Limit)] == ["max_duration"]
