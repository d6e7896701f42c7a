"""The queue with Compose: real engines that the controller on n1 reaches over SSH.

Only engines show that a container made of another one trains as that one would, that one which has
left stays away when its host starts anew, and that a killed controller goes on from what it sees.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import STAND_IN
from tests.lab.test_queue import queue
from tests.sandbox import Project

pytestmark = pytest.mark.lab
HOSTS = ("n1", "n2")
JOB = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 100000, batch_size: 32}}
checkpoint: {{every_epochs: 1}}
environment: {{LAB_PACE: "0.1"}}
secrets: {{TOKEN: env}}
"""
LONG = f"{JOB}queue: {{owner: anna}}\nhosts: {{gpus_per_host: 1}}\n"
SHORT = f"{JOB}queue: {{owner: ben, priority: 60}}\nhosts: {{names: [n2], gpus_per_host: 1}}\n"
DESK = f"image: {STAND_IN}\nsession: {{{{}}}}\nhosts: {{{{gpus: {{{{n2: [{{gpu}}]}}}}}}}}\n"
KEYS = """\
mkdir -p -m 700 ~/.ssh && install -m 600 /etc/kit-lab/key ~/.ssh/id_ed25519
echo 'StrictHostKeyChecking accept-new' >~/.ssh/config
"""
"""Lets a node log in to the others, as `ssh-copy-id` would."""
OURS = ("ps", "--all", "--quiet", "--filter", "label=kit.cluster")


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """An operator with two jobs of a queue; n1 cannot log in to the others yet."""
    made = make_operator(lab, project, docker, "compose")
    made = Operator(lab, project, "compose", {**made.env, "TOKEN": "a secret"})
    people = ("network:", "queue: {people: {anna: {}, ben: {}}}\nnetwork:")
    desk = DESK.format(gpu=lab.uuids("n2")[1])
    made.write({"long": LONG, "short": SHORT, "desk": desk}, people)
    try:
        yield made
    finally:
        print(lab.ssh("n1", "cat /run/kit-queue-test.log").stdout)
        with contextlib.suppress(AssertionError):
            made.kit("queue", "down")
        for host in HOSTS:
            ours = lab.docker(host, *OURS).split()
            if ours:
                lab.docker(host, "rm", "--force", *ours)
            lab.ssh(host, "rm -rf .local/share/kit .ssh /run/kit-queue*; docker volume prune -af")


def runs(lab: Lab, node: str) -> list[str]:
    """The trainings that run on a node."""
    names = lab.docker(node, "ps", "--format", "{{.Names}}").split()
    return sorted(name for name in names if "_train-" in name and "rendezvous" not in name)


def hosts(operator: Operator) -> dict[str, list[str]]:
    """The hosts of each job."""
    return {name: sorted(job["hosts"]) for name, job in queue(operator).items()}


def test_two_people_share_two_hosts_without_a_swarm(operator: Operator, lab: Lab) -> None:
    told = operator.kit("queue", "up", status=1)
    assert "the controller cannot reach a host; on this one, try: ssh root@" in told
    assert lab.ssh("n1", KEYS).returncode == 0
    operator.kit("queue", "up")
    assert "long: is ready on 2 hosts for the queue" in operator.kit("submit", "long", "short")
    both = {"long": ["n1", "n2"], "short": ["n2"]}
    wait_for(lambda: hosts(operator) == both, "both jobs to begin")
    on = "test_train-short-train-1-on"
    assert lab.docker("n2", "exec", on, "cat", "/run/secrets/TOKEN") == "a secret"
    wait_for(lambda: operator.status("long").get("world_size") == 2, "two hosts to train together")
    assert operator.status("long")["queue"]["owner"] == "anna"
    # Nothing has changed but what the queue changes; another controller sees the same.
    assert "long: runs already, from the same file" in operator.kit("submit", "long")
    lab.ssh("n1", "kill -KILL $(cat /run/kit-queue-test.pid)")
    # Its owner takes a host back. Its engine starts anew, and none of them comes back.
    told = operator.kit("reclaim", "n2")
    assert "long has left n2 after" in told
    assert "short has left n2 after" in told
    lab.do("restart", "n2")
    wait_for(lambda: operator.status("long").get("world_size") == 1, "the first one to go on")
    assert runs(lab, "n2") == []
    waits = "waits for n2, where its checkpoints are"
    wait_for(lambda: operator.status("short")["queue"]["why"] == waits, "the reason")
    assert operator.status("long")["restarts"] == 0
    step = json.loads(operator.kit("status", "--json"))["jobs"][0]["progress"]["step"]
    operator.kit("lend", "n2")
    wait_for(lambda: hosts(operator) == both, "both jobs to have the host again")
    wait_for(lambda: operator.status("long").get("world_size") == 2, "the first one to have grown")
    assert operator.status("long")["progress"]["step"] >= step
    # A session takes a GPU of the queue: the job that can shrink does, and grows again.
    operator.kit("deploy", "desk")
    assert operator.status("desk")["state"] == "running"
    wait_for(lambda: hosts(operator) == {"long": ["n1"], "short": ["n2"]}, "one to shrink")
    operator.kit("stop", "desk")
    wait_for(lambda: hosts(operator) == both, "the session's GPU to be the queue's again")
    operator.kit("cancel", "long", "short")
    assert [lab.docker(host, *OURS) for host in HOSTS] == ["", ""]
    assert "the queue is empty" in operator.kit("queue")
