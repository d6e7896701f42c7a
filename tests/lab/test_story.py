"""The whole way on one lab: bare hosts, five commands, a lost host, a split, a server, an end.

It is the lab's part of `make test`; all other scenarios are in `make test-lab`.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.client import ready, right_answers
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.lab.test_prepare import mirror
from tests.sandbox import ROOT, Project

__all__ = ["mirror"]
PAGE = (ROOT / "docs/start/bare-hosts.md").read_text(encoding="utf-8")
HOSTS = ("n2", "n3")
LEARNED = 0.95
"""Share of the 360 test digits; from epoch 60 on, it moves between 0.969 and 0.975."""
# More epochs than any machine completes, with pauses; one host may go on alone.
ENDLESS = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 9999, batch_size: 32, learning_rate: 0.02}}
checkpoint: {{every_epochs: 1}}
exchange: {{timeout: 10s}}
hosts: {{min: 1}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.05"}}
"""


@pytest.fixture
def bare(lab: Lab) -> Iterator[None]:
    """n2 and n3 have a driver and Docker alone, and are in no swarm."""
    lab.do("gpus", "n3", "TITAN RTX")
    for node in HOSTS:
        lab.do("bare", node)
    yield
    for node in HOSTS:
        lab.do("start", node)
        lab.do("bare", node)
    lab.do("gpus", "n2", "TITAN RTX", "Quadro GV100")
    lab.do("gpus", "n3")
    lab.do("swarm")


def commands() -> list[str]:
    """The commands of the page, in order, without comments."""
    found = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in found]


@pytest.fixture
def operator(
    bare: None, lab: Lab, project: Project, docker: Docker, mirror: str
) -> Iterator[Operator]:
    """The user of the page after its five commands, whose output is printed."""
    user = make_operator(lab, project, docker, "swarm")
    init, prepare, swarm, build, deploy = commands()
    assert "image build" in build  # The lab has an image, and no PyTorch to build one from.
    # As on the page, with the lab's names, repository and image; and nobody is there to answer.
    init = init.replace("user1@pc1,user2@pc2", f"user1@n2,user1@n3 --image {IMAGE}")
    prepare = prepare.replace("--run", f"--run --yes --toolkit {mirror}")
    began = time.monotonic()
    for lines in (
        (init, f"echo '{ENDLESS}' >jobs/digits.yaml"),
        (prepare, swarm + " --yes", deploy),
    ):
        done = subprocess.run(
            ["bash", "-c", "\n".join(("set -e", *lines))],
            cwd=user.project.folder,
            env={**user.env, "PATH": f"{Path(sys.executable).parent}:{user.env['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        user = make_operator(lab, Project(project.folder / "pool"), docker, "swarm")
    print(f"five commands took {time.monotonic() - began:.0f} s")
    try:
        yield user
    finally:
        with contextlib.suppress(AssertionError):
            print(user.kit("status"), *user.kit("logs").splitlines()[-60:], sep="\n")
            for node in HOSTS:
                print(lab.docker(node, "info", "--format", "{{json .Swarm}}"))
                print(lab.call("logs", node, "--tail", "40").stderr)
            user.kit("stop", "--all")
            user.kit("swarm", "down", "--yes")


def test_bare_hosts_train_lose_a_host_serve_and_resume(operator: Operator, lab: Lab) -> None:
    wait_for(operator.trains, "a checkpoint")
    told = operator.status()
    assert {each["host"]: each["devices"] for each in told["hosts"]} == {
        node: lab.uuids(node) for node in HOSTS
    }

    def ranks() -> dict[str, int]:
        return {each["host"]: len(each["ranks"]) for each in operator.status()["hosts"]}

    def step() -> int:
        return int((operator.status()["progress"] or {"step": 0})["step"])

    wait_for(lambda: ranks() == {"n2": 2, "n3": 1}, "both hosts to train")

    # A host loses its power: the other goes on, in the same processes; it comes back.
    lab.do("kill", "n3")
    alone = re.compile(r"2 processes on n2 continue at step [1-9]")
    wait_for(lambda: alone.search(operator.kit("logs", "--host", "n2")), "n2 to go on alone")
    assert operator.status()["state"] == "running"
    lab.do("start", "n3")
    wait_for(lambda: ranks() == {"n2": 2, "n3": 1}, "n3 to train again")
    assert "resumes at step" not in operator.kit("logs", "--host", "n2")

    # A GPU of n2 moves from the training to a server of what is trained.
    (operator.project.folder / "serve").mkdir()
    (operator.project.folder / "serve" / "digits.yaml").write_text(f"image: {IMAGE}\njob: digits\n")
    before = step()
    operator.split("--infer", "n2:1")
    operator.kit("deploy")
    url = f"http://{lab.settings.address('n2')}:8080"
    wait_for(lambda: ready(url), "a checkpoint to be served")
    wait_for(lambda: right_answers(url) > LEARNED, "a model that has learned")
    wait_for(lambda: ranks() == {"n2": 1, "n3": 1}, "the training with the other GPUs")
    wait_for(lambda: step() > before, "another step")
    [served] = operator.status("serve-digits")["hosts"]
    assert served["seen"] == lab.uuids("n2")[1:]

    # The server has been asked for some of the samples that this is measured with.
    wait_for(lambda: (operator.progress()["accuracy"] or 0) > LEARNED, "an accuracy")
    # It stops with a checkpoint, resumes from it, and comes to an end.
    assert "digits stopped after" in operator.kit("stop", "digits")
    stopped = operator.status()["progress"]
    ends = ENDLESS.replace("9999", str(stopped["epoch"] + 2)).replace("0.05", "0")
    (operator.project.folder / "jobs" / "digits.yaml").write_text(ends)
    operator.kit("render")
    output = operator.kit("deploy", "--wait")
    resumed = re.search(r"resumes at step (\d+), ", output)
    assert resumed
    # On a busy machine, Swarm may delete the last lines of a task before they are read.
    assert int(resumed[1]) >= stopped["step"]
    assert "digits completed after" in output
    assert operator.progress()["accuracy"] > LEARNED
    operator.kit("stop", "--all")
    assert "n2: leave the swarm" in operator.kit("swarm", "down", "--yes")
    for node in HOSTS:
        assert lab.docker(node, "ps", "--all", "--quiet") == ""
