"""Training and inference share the lab's GPUs, and exchange them: real engines, real requests."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.client import Client, get, ready, right_answers
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.sandbox import Project

pytestmark = pytest.mark.lab
NODES = ["n1", "n2", "n3"]
TRAIN = f"""\
image: {IMAGE}
train:
  {{dataset: digits, model: cnn, epochs: EPOCHS, batch_size: 32, learning_rate: 0.05, warm_up: 0}}
checkpoint: {{every_epochs: 5}}
environment: {{OMP_NUM_THREADS: "1"}}
"""
SERVER = f"""\
image: {IMAGE}
job: digits
token: {{env: DIGITS_TOKEN}}
timeout: 25s
environment: {{OMP_NUM_THREADS: "1"}}
"""
TOKEN = "hush-4"
MINE = "kit-test_digits-checkpoints kit-one_digits-checkpoints"


def train(epochs: int) -> str:
    return TRAIN.replace("EPOCHS", str(epochs))


def seen(operator: Operator, name: str) -> dict[str, list[str]]:
    """The GPUs that each host's container reports."""
    return {host["host"]: host["seen"] for host in operator.status(name)["hosts"]}


def step_of(server: dict[str, Any]) -> int:
    """The step of the checkpoint that a server answers with."""
    found = re.match(r"step-(\d+)$", server["checkpoint"] or "")
    return int(found[1]) if found else 0


@pytest.fixture
def made(lab: Lab, project: Project, docker: Docker) -> Iterator[dict[str, Operator]]:
    """Operators by their engines; their workloads are removed at the end."""
    operators = {
        engine: make_operator(lab, project, docker, engine) for engine in ("compose", "swarm")
    }
    try:
        yield operators
    finally:
        for operator in operators.values():
            with contextlib.suppress(AssertionError):
                # Shown if the test has failed.
                print(operator.kit("status"), *operator.kit("logs").splitlines()[-60:], sep="\n")
                operator.kit("stop", "--all", "--engine", operator.engine)
        for node in NODES:
            remains = "docker ps --all --quiet --filter label=kit.cluster=one"
            lab.ssh(node, f"docker rm --force $({remains})")
            lab.ssh(node, f"docker volume rm -f {MINE}; rm -rf .local/share/kit")


@pytest.fixture
def one_machine(lab: Lab) -> Iterator[list[str]]:
    """n3 as a workstation with three GPUs; their UUIDs."""
    lab.do("gpus", "n3", "TITAN RTX", "TITAN RTX", "Quadro GV100")
    try:
        yield lab.uuids("n3")
    finally:
        lab.do("gpus", "n3")


def test_one_machine_trains_on_two_gpus_and_serves_on_the_third(
    one_machine: list[str], made: dict[str, Operator], lab: Lab
) -> None:
    operator = made["compose"]
    operator.project.write(
        "cluster: one\nengine: compose\nhosts:\n"
        f"  n3: {{address: {lab.settings.address('n3')}, ssh: root@n3, gpus: 3}}\n",
        {"digits": train(25).replace('"1"', '"1", LAB_PACE: "0.05"')},
        {"digits": SERVER},
    )
    assert "serve-digits   GPUs, serves digits   idle" in operator.kit(
        "split", "--infer", "n3:2", "--dry-run"
    )
    operator.split("--infer", "n3:2")
    output = operator.kit("deploy", DIGITS_TOKEN=TOKEN)
    url = f"http://{lab.settings.address('n3')}:8080"
    assert f"serve-digits: started as 1 host, 1 GPU: {url}" in output
    wait_for(lambda: ready(url), "the first checkpoint to be served")
    assert operator.status()["state"] in {"running", "completed"}  # The server may start slowly.
    assert seen(operator, "digits") == {"n3": one_machine[:2]}
    assert seen(operator, "serve-digits") == {"n3": one_machine[2:]}
    assert [gpu["uuid"] for gpu in get(f"{url}/model", token=TOKEN)["gpus"]] == one_machine[2:]
    assert json.loads(operator.kit("status", "--json"))["wrong_gpus"] == []
    wait_for(lambda: operator.status()["state"] == "completed", "the end of the training")
    last = operator.status()["progress"]["step"]
    wait_for(lambda: step_of(operator.status("serve-digits")) == last, "the result to be served")
    assert right_answers(url, TOKEN) > 0.95
    assert "error" in get(f"{url}/model", token="guessed")
    page = urllib.request.urlopen(f"{url}/", timeout=10).read().decode()
    assert "<canvas" in page

    # All GPUs back to training, which continues with three.
    operator.split("--infer", "0")
    operator.project.write(None, {"digits": train(28)}, {"digits": SERVER})
    operator.kit("render")
    waiting = "serve-digits: n3 has 1 GPU, the files give it none: `kit deploy` moves them"
    assert waiting in operator.kit("status")
    output = operator.kit("deploy", "--wait", DIGITS_TOKEN=TOKEN)
    assert "serve-digits: is idle: it has no GPU" in output
    assert f"resumes at step {last}, " in output
    assert seen(operator, "digits") == {"n3": one_machine}
    operator.kit("stop", "--all")
    assert lab.docker("n3", "ps", "--all", "--quiet") == ""


def events(lab: Lab, node: str, since: float) -> list[tuple[str, str]]:
    """The events of kit's containers on a node, in order: `start` or `die`, and the workload."""
    form = "{{.Action}} {{.Actor.Attributes.name}}"
    span = ("--since", f"{since:.0f}", "--until", f"{time.time():.0f}")
    told = lab.docker(node, "events", *span, "--filter", "type=container", "--format", form)
    split = (line.split(" ", 1) for line in told.splitlines() if " " in line)
    return [(what, name.split(".")[0]) for what, name in split if what in {"start", "die"}]


def test_two_hosts_of_a_swarm_exchange_gpus(made: dict[str, Operator], lab: Lab) -> None:
    operator = made["swarm"]
    endless = train(9999).replace('"1"', '"1", LAB_PACE: "0.08"')
    operator.write({"digits": endless}, servers={"digits": SERVER})
    operator.kit("swarm", "up", "--yes")
    assert "serve-digits: is idle: it has no GPU" in operator.kit("deploy", DIGITS_TOKEN=TOKEN)
    wait_for(operator.trains, "a checkpoint")

    def ranks() -> list[int]:
        return sorted(rank for host in operator.status()["hosts"] for rank in host["ranks"])

    wait_for(lambda: ranks() == [0, 1, 2], "both hosts to train")  # One may begin alone.
    first = lab.docker("n1", "ps", "--quiet", "--filter", "name=train-digits_train-on-n1")
    began = time.time()

    # The weakest GPU is the Quadro: n1 is unchanged, and continues with n2's other GPU.
    assert "kit split --infer 0" in operator.split("--infer", "1")
    operator.kit("deploy", DIGITS_TOKEN=TOKEN)
    url = f"http://{lab.settings.address('n2')}:8080"
    wait_for(lambda: ready(url), "a checkpoint to be served")
    goes_on = re.compile("2 processes on n., n. continue at step")
    wait_for(lambda: goes_on.search(operator.kit("logs", "digits")), "both hosts to go on")
    at = operator.progress()["step"]
    wait_for(lambda: operator.progress()["step"] > at, "training")
    assert lab.docker("n1", "ps", "--quiet", "--filter", "name=train-digits_train-on-n1") == first
    (training, serving) = lab.uuids("n2")
    rest = {"n1": lab.uuids("n1"), "n2": [training]}
    wait_for(lambda: seen(operator, "digits") == rest, "what the training sees")
    wait_for(lambda: seen(operator, "serve-digits") == {"n2": [serving]}, "what the server sees")
    told = events(lab, "n2", began)
    assert told.index(("die", "train-digits_train-on-n2")) < told.index(
        ("start", "serve-digits_serve-on-n2")
    )

    # A second GPU for inference, on another host: the present server is not affected, and the
    # processes that still train are not started anew.
    stays = lab.docker("n2", "ps", "--quiet", "--filter", "name=train-digits_train-on-n2")
    with Client(url, TOKEN) as client:
        operator.split("--infer", "n1:0")
        operator.kit("deploy", DIGITS_TOKEN=TOKEN)
        other = f"http://{lab.settings.address('n1')}:8080"
        wait_for(lambda: ready(other), "the second server")
        wait_for(lambda: client.answered > 100, "answers")
    assert client.failed == []
    both = {"n1": lab.uuids("n1"), "n2": [serving]}
    wait_for(lambda: seen(operator, "serve-digits") == both, "what both see")
    wait_for(lambda: seen(operator, "digits") == {"n2": [training]}, "what the training sees")
    assert lab.docker("n2", "ps", "--quiet", "--filter", "name=train-digits_train-on-n2") == stays
    # n1 is no longer in the job: its server gets checkpoints from n2.
    wait_for(
        lambda: get(f"{other}/model", token=TOKEN)["checkpoint"]["host"] == "n2", "n2's checkpoint"
    )
    assert right_answers(other, TOKEN) > 0.95
    assert json.loads(operator.kit("status", "--json"))["wrong_gpus"] == []

    # A swap on one host: job and server exchange GPUs.
    operator.split("--infer", "n2:0", "--train", "n2:1")
    shown = operator.kit("deploy", "--dry-run", DIGITS_TOKEN=TOKEN)
    assert "it swaps GPUs with another workload" in shown
    operator.kit("deploy", DIGITS_TOKEN=TOKEN)
    wait_for(lambda: seen(operator, "digits") == {"n2": [serving]}, "training on the Quadro")
    wait_for(lambda: seen(operator, "serve-digits").get("n2") == [training], "the server")
    assert json.loads(operator.kit("status", "--json"))["wrong_gpus"] == []

    assert "serve-digits continues: `kit stop serve-digits` ends it" in operator.kit("stop")
    assert ready(other)
    operator.kit("stop", "--all")
    wait_for(
        lambda: not lab.docker("n1", "service", "ls", "--quiet", "--filter", "name=digits"), ""
    )
