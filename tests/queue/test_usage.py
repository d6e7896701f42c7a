"""The GPU-hours of a run in its record and in its log are those that the controller has counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kit.commands.report import _show_usage
from kit.queue import controller
from kit.report.document import document
from kit.report.record_lines import read_run
from kit.report.run_view import Origin, view_of_run
from kit.report.scripts import from_lines
from kit.report.usage import Usage, usage_in, usage_of
from kit.runtime.status import LogLine
from tests.queue.test_controller import World
from trainer.contract import event_lines
from trainer.contract.allocation import Allocation, read_allocation
from trainer.contract.events import Member
from trainer.contract.queue_events import Allocated

Line = dict[str, Any]


class Told:
    """What the hosts of a job write: lines into the log, and lines of ranks into the record."""

    def __init__(self, world: World, job: str) -> None:
        self._world, self._job = world, job
        self.log: list[LogLine] = []
        self.record: dict[str, list[Line]] = {}
        self._hosts: dict[str, Allocation] = {}

    def look(self) -> None:
        """Let each host that runs write at the present time, and begin anew after a change."""
        now, hosts = self._world.clock.now, dict(self._allocations())
        for host, own in hosts.items():
            if self._hosts.get(host) != own:
                self._say(host, event_lines.line(Allocated(time=now, **own._asdict())))
            self._say(host, event_lines.line(Member(time=now, rank=0, local_rank=0, world_size=1)))
        for rank, (host, own) in enumerate(hosts.items()):
            file = self.record.setdefault(host, [])
            if hosts != self._hosts:
                facts = {"host": host, "rank": rank, "attempt": now, "queue": own._asdict()}
                file.append({"record": "begin", "time": now, **facts})
            file.append({"record": "steps", "time": now})
        self._hosts = hosts

    def _say(self, host: str, text: str) -> None:
        self.log.append(LogLine(self._job, host, text))

    def _allocations(self) -> Iterator[tuple[str, Allocation]]:
        swarm = self._world.swarm
        for task in filter(swarm.lives, swarm.tasks):
            if task["ServiceID"].startswith(f"train-{self._job}_train-on-"):
                env = dict(each.split("=", 1) for each in task["Spec"]["ContainerSpec"]["Env"])
                env |= {"KIT_OWNER": "anna", "KIT_PRIORITY": "50"}  # Those of the rendered file.
                own = read_allocation(env)
                assert own is not None
                yield task["NodeID"], own

    def of_record(self) -> Usage | None:
        run = read_run("run", self._job, self.record.values(), None)
        assert run is not None
        return usage_of(run)


def test_a_run_has_used_what_the_controller_has_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "HANDOVER", 0.0)
    monkeypatch.setattr(controller, "NOTED", 0.0)
    world = World(h0=1, h1=2, h2=1)
    told = Told(world, "first")

    def pass_time(turns: int) -> None:
        for _ in range(turns):
            told.look()
            world.turns(1, seconds=60.0)

    world.submit("first")
    pass_time(60)
    world.submit("second", owner="ben", most=1)
    pass_time(60)
    world.swarm.end("second")
    pass_time(60)
    world.queue.reclaim("h1", "carl@h1")
    pass_time(60)
    counted = world.queue.spent().months["2027-01"]["anna"]["first"]
    # The host of two GPUs goes to the second job, and later to its owner.
    assert counted == pytest.approx(4 + 2 + 4 + 2, rel=0.01)
    for used in (told.of_record(), usage_in(told.log)):
        assert used is not None
        assert (used.owner, used.priority, used.waited_seconds) == ("anna", 50, 0.0)
        assert used.gpu_hours == pytest.approx(counted, rel=0.01)


def test_a_run_without_a_queue_has_used_nothing() -> None:
    begin = {"record": "begin", "time": 1.0, "host": "h0", "rank": 0, "attempt": 1.0}
    run = read_run("run", "first", [[begin]], None)
    assert run is not None
    assert usage_of(run) is usage_in([LogLine("first", "h0", "step 1", time=2.0)]) is None


QUEUED = Allocation("anna", 50, gpus=2, since=1000.0, waited=300.0)


def test_a_report_has_the_owner_and_what_the_run_has_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {"host": "h0", "rank": 0, "attempt": 4600.0, "queue": QUEUED._asdict()}
    begin = {"record": "begin", "time": 4600.0, **facts}
    run = read_run("run", "first", [[begin, {"record": "end", "time": 8200.0}]], None)
    assert run is not None
    shown = {"Owner": "anna", "Priority": "50", "Waited": "5 min", "GPU-hours": "4.00"}
    assert shown.items() <= dict(view_of_run(run, Origin(), None, 0)["details"]).items()
    _show_usage([replace(run, name="first")])
    assert capsys.readouterr().out.split()[-6:] == ["first", "anna", "50", "5", "min", "4.00"]
    [listed] = document([run], [Origin()])["runs"]
    assert listed["queue"] == {
        "owner": "anna",
        "priority": 50,
        "waited_seconds": 300.0,
        "gpu_hours": 4.0,
    }
    event = event_lines.line(Allocated(time=1001.0, **QUEUED._asdict()))
    log = [LogLine("first", "h0", event), LogLine("first", "h0", "step 9", time=8200.0)]
    script = from_lines("first", 3, log)
    assert script.json()["queue"] == listed["queue"]
    assert script.moments[0].words == "the queue has given 2 GPUs of it to anna's job"
