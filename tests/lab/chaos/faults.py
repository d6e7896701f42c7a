"""The faults, and what must hold while each of them lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.lab.chaos import acts, operators
from tests.lab.chaos.acts import Act
from tests.lab.chaos.world import MANAGER, NODES, World

Where = Literal["any", "worker", "first", "first-worker", "manager"]
Work = Callable[[World], None]
WAITS, STOPS = frozenset({"waiting"}), frozenset({"waiting", "stopping", "stopped"})


@dataclass(frozen=True)
class Fault:
    """A fault; `before` and `after` are not measured.

    `states` are those that kit status may tell besides running. `named`: it names the node;
    `tells` is what it says.
    `unreachable`: kit cannot reach the manager, and says so. `noticed`: somebody says that the
    training has lost a part. `forgets`: all processes end, so that steps since the last checkpoint
    may be taken again.
    """

    name: str
    what: str
    make: Act
    mend: Act | None = None
    where: Where = "any"
    lasts: float = 0.0  # Seconds from `make` to `mend`.
    noticed: bool = True
    named: bool = False
    tells: str = ""
    before: Act | None = None
    after: Act | None = None
    unreachable: bool = False
    forgets: bool = False
    states: frozenset[str] = frozenset()

    def node(self, world: World) -> str:
        """Draw the node at which it is made."""
        if self.where == "manager":
            return MANAGER
        if self.where == "first-worker":
            return acts.first_worker(world)
        if self.where == "first":
            return world.first()
        nodes = [node for node in NODES if self.where == "any" or node != MANAGER]
        return world.draw.choice(nodes)


def of_operator(name: str, what: str, work: Work, *, deploys: bool = False) -> Fault:
    """A fault of an operator."""

    def make(world: World, _: str) -> None:
        work(world)

    states = STOPS if deploys else frozenset[str]()
    return Fault(name, what, make, where="manager", noticed=False, states=states)


EVERY = (
    Fault("rank", "a rank is killed", acts.kill_rank),
    Fault("agent", "an agent is killed", acts.kill_agent),
    Fault("container", "a container is killed", acts.kill_container),
    Fault(
        "engine",
        "dockerd of a node is killed, 5 s later started",
        acts.kill_engine,
        acts.start_engine,
        where="worker",
        lasts=5,
    ),
    Fault(
        "power",
        "a node loses its power for 20 s",
        acts.cut_power,
        acts.restore_power,
        where="worker",
        lasts=20,
        named=True,
    ),
    Fault(
        "power-first",
        "the node of rank 0 loses its power for 20 s",
        acts.cut_power,
        acts.restore_power,
        where="first-worker",
        lasts=20,
        named=True,
    ),
    Fault(
        "pause",
        "a node hangs for 30 s",
        acts.power("pause"),
        acts.power("unpause"),
        where="worker",
        lasts=30,
        named=True,
    ),
    Fault(
        "cut-3",
        "a node is cut off for 3 s",
        acts.cable("disconnect"),
        acts.cable("connect"),
        where="worker",
        lasts=3,
    ),
    Fault(
        "cut-60",
        "a node is cut off for 60 s",
        acts.cable("disconnect"),
        acts.cable("connect"),
        where="worker",
        lasts=60,
        named=True,
    ),
    Fault("coordinator", "the coordinator is killed", acts.kill_coordinator, where="manager"),
    Fault(
        "manager",
        "the manager loses its power for 20 s",
        acts.cut_power,
        acts.restore_power,
        where="manager",
        lasts=20,
        unreachable=True,
        states=WAITS,
    ),
    Fault(
        "manager-engine",
        "dockerd of the manager is restarted",
        acts.restart_engine,
        where="manager",
        unreachable=True,
        states=WAITS,
    ),
    Fault(
        "slow",
        f"a node sends at {acts.SLOW} for 15 s",
        acts.slow_down,
        acts.speed_up,
        lasts=15,
        noticed=False,
    ),
    Fault(
        "all",
        "all nodes lose their power for 5 s",
        acts.cut_all,
        acts.restore_all,
        where="manager",
        lasts=5,
        noticed=False,
        unreachable=True,
        forgets=True,
        states=WAITS,
    ),
    Fault(
        "corrupt",
        "a node's newest checkpoint is damaged, all containers are killed",
        acts.corrupt,
        forgets=True,
        states=WAITS,
    ),
    Fault("save", "rank 0 is killed in the middle of a save", acts.kill_in_save, where="first"),
    Fault(
        "disk",
        "a node's disk is full for 20 s",
        acts.fill_disk,
        acts.free_disk,
        before=acts.use_small_disk,
        after=acts.use_own_disk,
        where="worker",
        lasts=20,
        tells="make room",
        forgets=True,
        states=WAITS,
    ),
    of_operator("kill-render", "kit render is killed", operators.kill_render),
    of_operator("kill-split", "kit split is killed", operators.kill_split),
    of_operator("kill-swarm-up", "kit swarm up is killed", operators.kill_swarm),
    of_operator("kill-deploy", "kit deploy is killed", operators.kill_deploy, deploys=True),
    of_operator(
        "two-deploys", "two operators deploy at once", operators.deploy_twice, deploys=True
    ),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in EVERY}
