"""A model of one's own on a real Swarm: its file reaches the containers, and its change too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import PATIENCE, Operator, make_operator, one_gpu_each
from tests.lab.settings import IMAGE
from tests.sandbox import Project
from tests.trainer import own

pytestmark = [pytest.mark.lab, pytest.mark.long]
JOB = f"""\
image: {IMAGE}
train:
  model: mine:build
  dataset: mine:data
  options: {{width: 12}}
  epochs: 9999
  batch_size: 16
  learning_rate: 0.01
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.05"}}
exchange: {{timeout: 10s}}
hosts: {{min: 1}}
"""
NODES = ("n1", "n2")
HANG = "/var/lib/docker/volumes/kit-test_mine-checkpoints/_data/hang"
HANGS = """

import pathlib, time

plain = loss

def loss(outputs, targets):
    while pathlib.Path("/checkpoints/hang").exists():
        time.sleep(0.5)
    return plain(outputs, targets)
"""
CODE = own.REGRESSION.lstrip() + HANGS
FAULT = "mine.py:15: in loss: NameError: name 'wrong' is not defined"


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, "swarm")
    made.write({"mine": JOB, "mine.py": CODE}, one_gpu_each(lab))
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop")
        for node in NODES:
            lab.ssh(node, "docker volume rm -f kit-test_mine-checkpoints kit-test_mine-data")


def test_containers_train_it_and_its_change(operator: Operator, lab: Lab) -> None:
    operator.kit("deploy", "--detach")
    wait_for(lambda: operator.trains("mine"), "a checkpoint")
    before = operator.status("mine")
    assert set(before["progress"]["metrics"]) == {"loss", "mae", "worst"}
    assert before["world_size"] == 2
    configs = lab.docker("n1", "config", "ls", "--format", "{{.Name}}").split()
    (first,) = [name for name in configs if name.startswith("train-mine-code-")]

    # Its code hangs on one host: the other goes on, and it is told where.
    lab.ssh("n2", f"touch {HANG}")
    wait_for(lambda: "hangs" in message(operator, "n2"), "the status to say that n2 hangs")
    lab.ssh("n2", f"rm {HANG}")
    wait_for(lambda: operator.status("mine")["world_size"] == 2, "n2 to train again")
    assert message(operator, "n2") == ""
    said = operator.kit("logs", "mine")
    assert 'mine.py", line' in said
    assert "in loss" in said

    # Another metric: a new config, and the training goes on from its checkpoint.
    changed = CODE.replace('"worst"', '"largest"')
    operator.write({"mine": JOB, "mine.py": changed}, one_gpu_each(lab))
    operator.kit("deploy", "--detach")
    wait_for(lambda: "largest" in metrics(operator), "the metric of the changed file")
    after = operator.status("mine")
    assert after["progress"]["epoch"] >= before["progress"]["epoch"]
    assert "resumes at step" in operator.kit("logs", "mine")
    configs = lab.docker("n1", "config", "ls", "--format", "{{.Name}}").split()
    assert {name for name in configs if name.startswith("train-mine-code-")} - {first}

    # A fault in it ends the job. A deploy that still looks tells it, the status does always.
    broken = changed.replace("return (outputs - targets).square().mean()", "return wrong")
    operator.write({"mine": JOB, "mine.py": broken}, one_gpu_each(lab))
    process = operator.start("deploy", "--detach")
    said, _ = process.communicate(timeout=PATIENCE)
    if process.returncode == 0:
        wait_for(lambda: FAULT in operator.kit("status"), "the fault in the status")
    else:
        assert FAULT in said
        assert "it was ended, because no restart can help" in said


def metrics(operator: Operator) -> dict[str, float]:
    return (operator.status("mine").get("progress") or {}).get("metrics") or {}


def message(operator: Operator, name: str) -> str:
    """What the status says of a host."""
    [host] = [each for each in operator.status("mine")["hosts"] if each["host"] == name]
    return str(host["message"] or "")
