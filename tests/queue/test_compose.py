"""The controller and Compose hosts: what it begins and ends there, and what its end does."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.docker import Docker
from kit.model import Host
from kit.queue import controller as module
from kit.queue.controller import Controller
from kit.queue.moves import Release
from kit.queue.record import COMPLETED, Record
from kit.sharing import Queued
from kit.targets.compose import queue as queue_module
from kit.targets.compose.folder import HostFolder
from kit.targets.compose.jobs import remove
from kit.targets.compose.observe import containers
from kit.targets.compose.queue import ComposeQueue
from tests.queue.engines import Engines
from tests.queue.swarm import KilledError
from tests.queue.test_controller import NOW, POOL, Clock

HERE = Host("h0", "", "", (), (), None, 0, ())


class World:
    """Hosts, their queue, and a controller that may be another one after each turn."""

    def __init__(self, **hosts: int) -> None:
        self.engines, self.clock = Engines(hosts), Clock()
        self.told: list[str] = []
        self.anew()
        gpus = {name: {"gpus": engine.gpus} for name, engine in self.engines.hosts.items()}
        self.queue.set_rules({**POOL, "hosts": gpus})

    def anew(self) -> None:
        dockers = cast(dict[str, Docker], self.engines.hosts)
        folder = HostFolder(HERE, "lab", ssh.run_here)
        self.queue = ComposeQueue(folder, dockers, controls=True)
        self.controller = Controller(self.queue, self.told.append, self.clock)

    def submit(self, job: str, least: int = 1, most: int | None = None, **more: Any) -> None:
        queued = Queued(more.get("owner", "anna"), more.get("priority", 50), least, most)
        self.engines.submit(job, queued)
        now = self.clock.now
        self.queue.add(Record(job, queued.owner, queued.priority, now, waits=now))

    def turns(self, number: int = 1, seconds: float = 1.0) -> None:
        for _ in range(number):
            self.controller.step()
            self.follow(seconds)

    def follow(self, seconds: float = 1.0) -> None:
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            if thread.daemon and "(stop)" in thread.name:
                thread.join()
        self.engines.advance()
        has = self.engines.trains().values()
        gpus = Counter(gpu for hosts in has for ids in hosts.values() for gpu in ids)
        assert not [gpu for gpu, number in gpus.items() if number > 1]
        self.clock.now += seconds

    def sizes(self) -> dict[str, int]:
        return {job: len(hosts) for job, hosts in self.engines.trains().items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "HANDOVER", 0.0)
    monkeypatch.setattr(module, "NOTED", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_job_shrinks_for_another_and_goes_on() -> None:
    world = World(h0=1, h1=2)
    world.submit("first")
    world.turns(2)
    assert world.sizes() == {"first": 2}
    assert world.engines.coordinated() == {"first"}
    world.clock.now += 100
    world.submit("second", most=1, owner="ben")
    world.turns(3)
    assert world.sizes() == {"first": 1, "second": 1}
    (left,) = [
        one
        for engine in world.engines.hosts.values()
        for one in engine.of("train")
        if one["Name"] == "/lab_train-first-train-1-leaving"
    ]
    assert left["HostConfig"]["RestartPolicy"]["Name"] == "no"
    for engine in world.engines.hosts.values():
        for one in engine.of("train"):
            if one["Name"] == "/lab_train-second-train-1-on":
                one["State"].update(Status="exited", ExitCode=0)
    world.turns(1, seconds=100)
    world.turns(3)
    assert world.sizes() == {"first": 2}
    assert world.queue.records()["second"].state == COMPLETED
    assert world.engines.coordinated() == {"first"}


def test_what_a_person_ends_on_a_host_stays_away() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    (on,) = [o for o in world.engines.hosts["h1"].of("train") if o["Name"].endswith("-on")]
    on["State"].update(Status="exited", ExitCode=143)
    world.turns(3)
    assert world.sizes() == {"first": 1}
    assert [line for line in world.told if "on h1 was ended" in line]


def test_the_controller_and_a_person_may_end_a_job_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, move = World(h0=1), Release("first", "h0")
    world.submit("first")
    world.turns(2)
    seen = containers(cast(Docker, world.engines.hosts["h0"]), "lab")
    world.queue.release(move)
    # The person's command has looked before that.
    monkeypatch.setattr(queue_module, "containers", lambda *_: seen)
    assert world.queue.leave(move, 0.0)
    monkeypatch.undo()
    world.turns(1)
    left = containers(cast(Docker, world.engines.hosts["h0"]), "lab")
    gone = [one for one in left if one.name.endswith("-leaving")]
    remove(cast(Docker, world.engines.hosts["h0"]), gone[0].id)
    remove(cast(Docker, world.engines.hosts["h0"]), gone[0].id)


def test_a_job_leaves_the_gpus_that_a_deploy_claims() -> None:
    world = World(h0=1, h1=2)
    world.submit("first")
    world.turns(2)
    assert world.sizes() == {"first": 2}
    wanted = world.engines.hosts["h1"].gpus[:1]
    claims = threading.Thread(target=world.queue.claim, args=("h1", wanted, world.clock.now))
    claims.start()
    for _ in range(100):
        world.turns(1, seconds=0.1)
        if not claims.is_alive():
            break
        claims.join(0.05)
    assert not claims.is_alive()
    world.turns(5)
    assert world.engines.trains()["first"].get("h1", []) == world.engines.hosts["h1"].gpus[1:]
    # What the deploy has started holds the GPU now, or has given it back.
    world.queue.unclaim("h1")
    world.turns(5, seconds=100)
    assert sum(map(len, world.engines.trains()["first"].values())) == 3


def test_a_claim_that_no_controller_sees_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "NOTICED", 0.0)
    world = World(h0=1)
    world.submit("first")
    world.turns(2)
    with pytest.raises(KitError, match="the controller has not asked it to leave"):
        world.queue.claim("h0", world.engines.hosts["h0"].gpus, world.clock.now)
    world.turns(2)
    assert world.sizes() == {"first": 1}


def test_a_host_that_does_not_answer_is_told_and_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    engine = world.engines.hosts["h1"]

    def lost(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(engine, "get", lost)
        world.turns(2)
    rules = world.queue.rules()
    assert rules
    seen = world.queue.look(rules, list(world.queue.records().values()), {}, NOW)
    assert seen.silent == {"h1": "killed"}
    world.anew()
    world.turns(2)
    assert world.sizes() == {"first": 2}


def test_a_note_that_a_person_has_changed_stays() -> None:
    world = World(h0=1)
    world.submit("first")
    before = world.queue.records()["first"]
    folder = HostFolder(HERE, "lab", ssh.run_here)
    person = ComposeQueue(folder, cast(dict[str, Docker], world.engines.hosts))
    person.update(Record("first", "anna", 50, NOW, ended=NOW, state="cancelled"))
    world.queue.update(before)
    assert world.queue.records()["first"].state == "cancelled"


@pytest.mark.parametrize("dies_after", range(14))
def test_a_controller_that_is_killed_at_any_change_leaves_nothing_wrong(dies_after: int) -> None:
    world = World(h0=1, h1=2, h2=1)
    world.submit("first")
    world.turns(2)
    world.clock.now += 100
    world.submit("second", least=2, most=2, owner="ben", priority=60)
    world.engines.dies_after = dies_after
    try:
        world.turns(8)
    except KilledError:
        world.follow()
    world.engines.dies_after = None
    world.anew()
    world.turns(6)
    assert world.sizes() == {"first": 1, "second": 2}
    assert world.engines.coordinated() == {"first", "second"}
