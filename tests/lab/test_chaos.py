"""The fast faults of the fault suite, one after the other during one training over three nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.chaos.acts import kill_rank
from tests.lab.chaos.faults import FAULTS
from tests.lab.chaos.suite import begin, run
from tests.lab.chaos.world import CALM, JOB, NODES, TRAIN, World
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import make_operator
from tests.sandbox import Project

pytestmark = [pytest.mark.lab, pytest.mark.long]
FAST = ("rank", "container", "cut-3", "coordinator")


def leave_swarm(lab: Lab) -> None:
    for node in reversed(NODES):
        lab.leave_swarm(node)


@pytest.fixture
def world(lab: Lab, project: Project, docker: Docker) -> Iterator[World]:
    """Three nodes that train; the third one has a GPU meanwhile."""
    leave_swarm(lab)
    made = World(lab, make_operator(lab, project, docker, "swarm"), Random(1))
    made.prepare()
    try:
        begin(made)
        yield made
    finally:
        made.clear()
        with contextlib.suppress(AssertionError):
            made.operator.kit("stop")
        made.forget()
        leave_swarm(lab)
        lab.do("gpus", "n3")


def test_a_training_survives_fast_faults(world: World) -> None:
    faults = [FAULTS[name] for name in FAST]
    result = run(world, faults, print, compare=False)
    assert result.wrong == ()
    assert [each.fault for each in result.outcomes] == [*FAST]
    assert all(each.lost == 0 for each in result.outcomes)
    assert result.steps > 0


def test_a_host_that_is_left_out_is_shown_and_taken_back(world: World) -> None:
    operator = world.operator
    text = f"{TRAIN}{CALM}faults: {{killed: leave_out}}\n".replace("EPOCHS", "99999")
    operator.write({JOB: text})
    operator.kit("deploy")

    def hosts() -> dict[str, Any]:
        return {host["host"]: host for host in operator.status(JOB)["hosts"]}

    def trains(number: int) -> bool:
        return sum(len(host["ranks"]) for host in hosts().values()) == number

    wait_for(lambda: trains(3), "all nodes to train")
    kill_rank(world, "n2")
    wait_for(lambda: hosts()["n2"]["left_out"], "n2 to be left out")
    wait_for(lambda: trains(2), "the others to train")
    said = "is left out, `kit release n2` takes it back: rank "
    assert hosts()["n2"]["message"].startswith(said)
    assert operator.kit("release", "n2") == f"{JOB}: n2 is released\n"
    wait_for(lambda: trains(3), "all nodes to train again")
    assert not hosts()["n2"]["left_out"]
