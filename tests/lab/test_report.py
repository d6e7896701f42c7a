"""`kit report` and `kit top` on the lab's hosts: records and GPUs over SSH, under both engines."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.sandbox import Project

pytestmark = pytest.mark.lab
JOB = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 2000, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
hosts: {{min: 1}}
"""
SHORT = (
    JOB.replace("epochs: 2000", "epochs: 2")
    .replace('"0.1"', '"0"')
    .replace("hosts: {min: 1}\n", "")
)
"""All hosts must take part: both epochs may be over before the other one has come."""


@contextlib.contextmanager
def operating(engine: str, lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """An operator whose job and volumes are removed at the end."""
    made = make_operator(lab, project, docker, engine)
    made.env["XDG_STATE_HOME"] = str(project.folder / "state")
    made.write({"digits": JOB})
    if engine == "swarm":
        made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop", "--all")
        for host in ("n1", "n2"):
            lab.ssh(host, "docker volume rm -f kit-test_digits-checkpoints")


def report(operator: Operator, *arguments: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(operator.kit("report", *arguments, "--json"))["runs"]
    return runs


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    with operating("swarm", lab, project, docker) as made:
        yield made


def test_gpus_ranks_and_a_split_are_shown(operator: Operator, lab: Lab) -> None:
    operator.kit("deploy")
    wait_for(operator.trains, "a checkpoint")

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(operator.kit("top", "--json"))["gpus"]
        return found

    found: list[dict[str, Any]] = []

    def paced() -> bool:
        found[:] = rows()
        return all(row["pace"] for row in found)

    wait_for(paced, "paces")
    assert [(row["host"], row["gpu"]["uuid"]) for row in found] == [
        (host, uuid) for host in ("n1", "n2") for uuid in lab.uuids(host)
    ]
    assert {row["holder"] for row in found} == {"digits"}
    assert sorted(row["rank"] for row in found) == [0, 1, 2]
    assert all(row["pace"]["seconds"] > 0.1 for row in found)
    assert "TITAN RTX" in operator.kit("top", "--once")

    def sizes() -> list[int]:
        return [attempt["world_size"] for attempt in report(operator)[0]["attempts"]]

    operator.split("--infer", "n2:1")
    operator.kit("deploy")
    divided = time.time()
    # A host may begin alone, as `min: 1` allows, before the other joins.
    wait_for(lambda: sizes()[-1] == 2, "a run of two ranks")
    wait_for(operator.trains, "progress")
    operator.kit("stop")
    [run] = report(operator, "digits")
    # One host may begin alone, as `min: 1` allows.
    first = next(each for each in run["attempts"] if each["world_size"] == 3)
    rest = run["attempts"][1:]
    assert sorted(first["hosts"]) == sorted(rest[-1]["hosts"]) == ["n1", "n2"]
    after = [attempt["world_size"] for attempt in rest if attempt["began"] > divided]
    assert rest[-1]["world_size"] == 2
    assert max(after, default=2) == 2, rest
    assert run["state"] == "stopped"
    # What a split costs is a start and no restart; time between runs is not counted.
    assert run["time"]["start"] > 0
    assert 0 < run["seconds"] <= run["ended"] - run["began"] + 1e-3  # Rounded to milliseconds.
    assert sum(run["time"].values()) == pytest.approx(run["seconds"], rel=0.02)
    assert {rank["host"] for rank in run["ranks"]} == {"n1", "n2"}
    assert run["origin"]["image"] == IMAGE

    # What is deleted with the checkpoints can still be compared.
    name = f"digits@{run['run']}"
    operator.write({"digits": SHORT})
    operator.kit("deploy", "--fresh", "--wait")
    both = report(operator, "digits", name)
    assert [each["state"] for each in both] == ["complete", "stopped"]
    assert both[0]["predictions"]["samples"] == 360
    printed = operator.kit("report", "digits", "--runs", "2")
    assert "report.html: " in printed
    assert "resumed with 2 ranks" in (operator.project.folder / "report.html").read_text()
    history = json.loads(operator.kit("history", "--json"))
    assert history[0]["runs"] == [both[0]["run"]]
    assert history[0]["reports"] == [str(operator.project.folder / "report.html")]


def test_records_are_read_under_compose(lab: Lab, project: Project, docker: Docker) -> None:
    with operating("compose", lab, project, docker) as operator:
        operator.write({"digits": SHORT})
        operator.kit("deploy", "--wait")
        [run] = report(operator)
        assert {rank["host"] for rank in run["ranks"]} == {"n1", "n2"}
        assert (run["state"], run["predictions"]["samples"]) == ("complete", 360)
        gpus = json.loads(operator.kit("top", "--json"))["gpus"]
        assert len(gpus) == sum(len(lab.uuids(host)) for host in ("n1", "n2"))
