"""A spare: what the loss of a host costs a job that needs all of its hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import STAND_IN
from tests.sandbox import Project

pytestmark = pytest.mark.lab
JOB = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 9999, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
exchange: {{timeout: 10s}}
"""
NODES = ("n1", "n2", "n3")


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """Three nodes with a GPU or two each; n3 is a spare."""
    lab.do("gpus", "n3", "TITAN RTX")
    made = make_operator(lab, project, docker, "swarm")
    text = lab.inventory()
    spare = lab.uuids("n3")[0]
    project.write(text.replace(f"uuid: {spare},", f"uuid: {spare}, use: spare,"), {"digits": JOB})
    made.kit("render")
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        for node in NODES:
            lab.do("start", node)
        with contextlib.suppress(AssertionError):
            print(made.kit("status"), *made.kit("logs").splitlines()[-60:], sep="\n")
            made.kit("stop")
        for node in NODES:
            lab.ssh(node, "docker volume rm -f kit-test_digits-checkpoints kit-test_digits-data")
        lab.do("gpus", "n3")


def members(operator: Operator) -> dict[str, list[int]]:
    """The ranks of each host in the present group."""
    told = operator.status()
    return {host["host"]: host["ranks"] for host in told.get("hosts", []) if host["ranks"]}


def test_a_spare_trains_for_a_host_that_is_lost(operator: Operator, lab: Lab) -> None:
    operator.kit("deploy")
    wait_for(lambda: len(members(operator)) == 2, "two hosts to train")
    while "n3" in members(operator):  # A host that was late finds the spare in its place.
        operator.kit("stop")
        operator.kit("deploy", "--fresh")
        wait_for(lambda: len(members(operator)) == 2, "two hosts to train")
    shown = operator.kit("status")
    rows = [line.split() for line in shown.splitlines()]
    assert [row[2:4] for row in rows if row[:2] == ["digits", "n3"]] == [["running", "spare"]]
    assert "ranks train" not in shown
    before = operator.progress()["step"]

    lab.do("kill", "n2")
    wait_for(lambda: members(operator).keys() == {"n1", "n3"}, "the spare to train")
    assert operator.status()["state"] == "running"
    step = operator.progress()["step"]
    assert step >= before
    wait_for(lambda: operator.progress()["step"] > step, "a step")
    assert "resumed" not in operator.kit("logs", "digits", "--events")

    # It comes back and stands by; the loss of the spare gives it its place again.
    lab.do("start", "n2")
    stands_by = "n2 | launch n2: is ready, and waits to join"

    def stands() -> bool:
        """Whether n2 stands by; or it trains again, as another was silent on a busy machine."""
        return stands_by in operator.kit("logs", "digits") or "n2" in members(operator)

    wait_for(stands, "n2 to stand by")
    lab.do("kill", "n3")
    wait_for(lambda: members(operator).keys() == {"n1", "n2"}, "n2 to train again")
