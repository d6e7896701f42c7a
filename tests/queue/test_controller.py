"""The controller and a Swarm: what it turns on and off, what it notes, and what its end does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from kit.hosts.docker import Docker
from kit.queue import controller as module
from kit.queue.controller import Controller
from kit.queue.record import Record
from kit.queue.see import AVOIDED_FOR, CLAIM_LASTS
from kit.runtime.status import State
from kit.sharing import Queued
from kit.targets.swarm.queue import SwarmQueue
from tests.queue.swarm import KilledError, Swarm

NOW = 1.8e9
TOLD = {"KIT_S", "KIT_W"}
POOL = {"half_life": 3600, "people": {}, "hosts": {}}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class World:
    """A Swarm, its queue, and a controller that may be another one after each turn."""

    def __init__(self, **hosts: int) -> None:
        self.swarm, self.clock = Swarm(hosts), Clock()
        self.queue = SwarmQueue(cast(Docker, self.swarm))
        gpus = {name: {"gpus": ids} for name, ids in self.swarm.gpus.items()}
        self.queue.set_rules({**POOL, "hosts": gpus})
        self.told: list[str] = []
        self.controller = self.anew()

    def anew(self) -> Controller:
        return Controller(
            SwarmQueue(cast(Docker, self.swarm), controls=True), self.told.append, self.clock
        )

    def submit(self, job: str, least: int = 1, most: int | None = None, **more: object) -> None:
        values = {"owner": "anna", "priority": 50, **more}
        queued = Queued(least=least, most=most, **values)  # type: ignore[arg-type]
        self.swarm.submit(job, queued)
        now = self.clock.now
        self.queue.add(Record(job, queued.owner, queued.priority, now, "anna@pc1", waits=now))

    def turns(self, number: int = 1, seconds: float = 1.0) -> None:
        """Let the controller take turns, and the engines follow."""
        for _ in range(number):
            self.controller.step()
            self.follow(seconds)

    def follow(self, seconds: float = 1.0) -> None:
        self.swarm.now = self.clock.now
        self.swarm.advance()
        self.swarm.advance()
        self.require_one_owner()
        self.clock.now += seconds

    def require_one_owner(self) -> None:
        gpus = Counter(
            gpu for has in self.swarm.runs().values() for had in has.values() for gpu in had.gpus
        )
        assert not [gpu for gpu, number in gpus.items() if number > 1]

    def gpus(self) -> set[str]:
        has = self.swarm.runs().values()
        return {gpu for hosts in has for had in hosts.values() for gpu in had.gpus}

    def variables(self, job: str) -> dict[str, str]:
        """Return what the queue has told the containers of a job that run, besides its GPUs."""
        (found,) = {
            tuple(each for each in task["Spec"]["ContainerSpec"]["Env"] if each[:5] in TOLD)
            for task in filter(self.swarm.lives, self.swarm.tasks)
            if task["ServiceID"].startswith(f"train-{job}_train")
        }
        return dict(each.split("=", 1) for each in found)

    def sizes(self) -> dict[str, int]:
        return {job: len(has) for job, has in self.swarm.runs().items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDOVER", 0.0)
    monkeypatch.setattr(module, "NOTED", 0.0)


def test_a_job_begins_shrinks_for_another_and_grows_again() -> None:
    world = World(h0=1, h1=2, h2=1)
    world.submit("first")
    world.turns(2)
    assert world.sizes() == {"first": 3}
    assert world.swarm.coordinated() == {"first"}
    world.clock.now += 100
    world.submit("second", owner="ben", most=1)
    world.turns(3)
    assert world.sizes() == {"first": 2, "second": 1}
    assert world.queue.records()["second"].waited <= 3
    assert world.variables("second") == {"KIT_SINCE": f"{NOW + 103:.3f}", "KIT_WAITED": "1.0"}
    world.swarm.end("second")
    world.turns(3)
    assert world.sizes() == {"first": 3}
    ended = world.queue.records()["second"]
    assert (ended.state, ended.ended is None) == (State.COMPLETED, False)
    assert world.swarm.coordinated() == {"first"}


def test_a_record_that_a_person_has_changed_stays() -> None:
    world = World(h0=1)
    world.submit("first")
    controls = SwarmQueue(cast(Docker, world.swarm), controls=True)
    before = controls.records()["first"]
    world.queue.update(replace(before, gone=True))
    controls.update(replace(before, reason="waits"))
    assert world.queue.records()["first"].gone
    # What it has read, and what it has written since, it changes.
    before = controls.records()["first"]
    for reason in ("waits", "waits for 1 host"):
        controls.update(replace(before, reason=reason))
    assert world.queue.records()["first"].reason == "waits for 1 host"


def test_a_persons_change_is_repeated_after_one_of_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(h0=1)
    world.submit("first")
    controls = SwarmQueue(cast(Docker, world.swarm), controls=True)
    before, post = controls.records()["first"], world.swarm.post

    def post_after_the_controller(*arguments: Any, **values: Any) -> Any:
        monkeypatch.setattr(world.swarm, "post", post)
        controls.update(replace(before, reason="waits"))
        return post(*arguments, **values)

    monkeypatch.setattr(world.swarm, "post", post_after_the_controller)
    world.queue.update(replace(before, gone=True))
    assert world.queue.records()["first"].gone


def test_a_job_that_fails_on_all_hosts_has_ended() -> None:
    world = World(h0=1)
    world.submit("first")
    world.submit("second", owner="ben")
    world.turns(2)
    assert world.sizes() == {"first": 1}
    assert world.queue.records()["second"].reason == "waits for 1 host, which first has"
    world.swarm.end("first", "failed")
    world.turns(2)
    assert world.queue.records()["first"].state == State.FAILED
    assert world.sizes() == {"second": 1}


def test_a_host_that_is_down_is_given_up_and_taken_again() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    world.swarm.nodes["h1"]["Status"]["State"] = "down"
    world.turns(2)
    first = world.swarm.services["train-first_train-on-h1"]
    assert first["Spec"]["Mode"]["Replicated"]["Replicas"] == 0
    world.swarm.nodes["h1"]["Status"]["State"] = "ready"
    world.turns(3)
    assert world.sizes() == {"first": 2}


def test_a_new_leader_that_has_not_heard_of_a_host_moves_nothing() -> None:
    world = World(h0=1, h1=1)
    world.submit("first", most=1)
    world.turns(2)
    world.submit("second", owner="ben", priority=10)
    world.turns(2)
    before = world.swarm.runs()
    for node in world.swarm.nodes.values():
        node["Status"]["State"] = "unknown"
    world.controller = world.anew()
    world.turns(3)
    assert world.swarm.runs() == before


def test_an_owner_takes_a_host_back_and_lends_it() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    world.queue.reclaim("h1", "ben@h1")
    world.turns(2)
    assert world.sizes() == {"first": 1}
    assert world.swarm.nodes["h1"]["Spec"]["Labels"]["kit.reclaimed"] == "ben@h1"
    world.queue.reclaim("h1", "")
    world.turns(2)
    assert world.sizes() == {"first": 2}


def test_a_session_gets_the_gpu_that_it_names_and_leaves_it_again() -> None:
    world = World(h0=1, h1=2)
    world.submit("first")
    world.turns(2)
    assert world.gpus() == {"GPU-h0-0", "GPU-h1-0", "GPU-h1-1"}
    world.swarm.session("ben", "h1", "GPU-h1-1")
    world.turns(2)
    assert "GPU-h1-1" not in world.gpus()
    world.turns(1, seconds=100)
    world.turns(2)
    assert world.gpus() == {"GPU-h0-0", "GPU-h1-0"}
    world.swarm.complete("ben")
    world.turns(1, seconds=100)
    world.turns(3)
    assert world.gpus() == {"GPU-h0-0", "GPU-h1-0", "GPU-h1-1"}


def test_a_gpu_that_a_deploy_has_claimed_is_left_for_a_while() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    labels = world.swarm.nodes["h1"]["Spec"]["Labels"]
    labels["kit.claimed"] = f"{world.clock.now:.0f} GPU-h1-0"
    world.turns(3)
    assert world.gpus() == {"GPU-h0-0"}
    world.clock.now += CLAIM_LASTS
    world.turns(3)
    assert world.gpus() == {"GPU-h0-0", "GPU-h1-0"}


def test_who_ends_a_job_on_a_host_by_hand_has_it_for_a_while() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    world.swarm.interrupt("h1", world.clock.now)
    world.turns(1)
    world.queue.reclaim("h1", "")
    world.turns(3)
    assert world.sizes() == {"first": 2}
    assert len([line for line in world.told if "on h1 was ended" in line]) == 1
    world.told.clear()
    world.swarm.interrupt("h1", world.clock.now)
    world.turns(3)
    assert world.sizes() == {"first": 1}
    world.turns(1, seconds=AVOIDED_FOR)
    world.turns(2)
    assert world.sizes() == {"first": 2}
    assert len([line for line in world.told if "on h1 was ended" in line]) == 1


def test_who_ends_a_job_by_hand_and_takes_the_host_back_keeps_it() -> None:
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(2)
    world.swarm.interrupt("h1", world.clock.now)
    world.queue.reclaim("h1", "ben@h1")
    world.turns(2, seconds=AVOIDED_FOR)
    world.turns(2)
    assert world.sizes() == {"first": 1}


def test_a_job_that_ends_late_was_not_ended_by_hand() -> None:
    """Its host was lent again while it still saved, and the job began there anew."""
    world = World(h0=1, h1=1)
    world.submit("first")
    world.turns(10)
    world.queue.reclaim("h1", "ben@h1")
    world.turns(2)
    world.queue.reclaim("h1", "")
    world.turns(2)
    world.swarm.end_late("h1", world.clock.now - 12)
    world.turns(2)
    assert world.sizes() == {"first": 2}
    assert not [line for line in world.told if "on h1 was ended" in line]


def test_only_the_leader_decides() -> None:
    world = World(h0=1)
    world.submit("first")
    world.swarm.leader = False
    world.turns(3)
    assert world.sizes() == {}
    world.swarm.leader = True
    world.turns(2)
    assert world.sizes() == {"first": 1}


def test_what_people_have_used_halves_and_is_kept_by_month() -> None:
    world = World(h0=2)
    world.submit("first")
    world.turns(2)
    world.turns(1, seconds=3600)
    world.turns(1)
    spent = world.queue.spent()
    assert sum(spent.months["2027-01"]["anna"].values()) == pytest.approx(2, rel=0.01)
    assert spent.until(spent.at + 3600, 3600)["anna"] == pytest.approx(spent.hours["anna"] / 2)
    # Rules that change keep it.
    assert world.queue.set_rules({**POOL, "half_life": 60})
    assert world.queue.spent() == spent


@pytest.mark.parametrize("dies_after", range(14))
def test_a_controller_that_is_killed_at_any_change_leaves_nothing_wrong(dies_after: int) -> None:
    world = World(h0=1, h1=2, h2=1)
    world.submit("first")
    world.turns(2)
    world.clock.now += 100
    world.submit("second", owner="ben", least=2, most=2, priority=60)
    world.swarm.dies_after = dies_after
    try:
        world.turns(8)
    except KilledError:
        world.follow()
    world.swarm.dies_after = None
    world.controller = world.anew()
    world.turns(6)
    assert world.sizes() == {"first": 1, "second": 2}
    assert world.swarm.coordinated() == {"first", "second"}
    records = world.queue.records()
    assert all(records[job].began is not None for job in ("first", "second"))
