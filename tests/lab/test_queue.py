"""Several people share a pool: a real Swarm of three managers, the real controller.

What it decides is proved by a simulator, and what it may do when it is killed by a stand-in of the
Swarm's API. Only engines show that trainings shrink and grow without a lost step by what Swarm does
with their services, that a reclaimed host is empty, and that another manager takes over.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.conftest import CLUSTER, NODES, Lab, wait_for
from tests.lab.operator import Operator, make_operator, one_gpu_each
from tests.lab.settings import STAND_IN
from tests.sandbox import Project

pytestmark = pytest.mark.lab
JOB = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 100000, batch_size: 32}}
checkpoint: {{every_epochs: 5, keep: 2}}
limits: {{shared_memory: 64MiB}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.3"}}
"""
LONG = f"{JOB}queue: {{owner: anna}}\nhosts: {{gpus_per_host: 1}}\n"
SHORT = f"{JOB}queue: {{owner: ben}}\nhosts: {{max: 1, gpus_per_host: 1}}\n"
DESK = f"image: {STAND_IN}\nsession: {{{{}}}}\nhosts: {{{{gpus: {{{{n3: [{{gpu}}]}}}}}}}}\n"
KILLS = 20
START = "sleep 600 </dev/null >/dev/null 2>&1 & echo process {gpu} $! 1024 python >/lab/faults"
"""Starts a process that the stand-in of nvidia-smi then shows on a GPU."""
MANAGERS = [
    (f"    ssh: root@{node}\n", f"    ssh: root@{node}\n    roles: [manager]\n")
    for node in ("n2", "n3")
]
VOLUMES = " ".join(
    f"kit-{CLUSTER}_{job}-{kind}"
    for job in ("desk", "long", "short")
    for kind in ("checkpoints", "dumps", "data")
)


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """An operator whose three hosts have a GPU each for the pool, and are managers."""
    lab.do("gpus", "n3", "TITAN RTX")
    made = make_operator(lab, project, docker, "swarm")
    inventory = (
        lab.inventory().replace(*one_gpu_each(lab)) + "\nqueue: {people: {anna: {}, ben: {}}}\n"
    )
    for before, after in MANAGERS:
        inventory = inventory.replace(before, after)
    desk = DESK.format(gpu=lab.uuids("n3")[0])
    project.write(inventory, {"long": LONG, "short": SHORT, "desk": desk})
    made.kit("render")
    try:
        made.kit("swarm", "up", "--yes")
        made.kit("queue", "up")
        yield made
    finally:
        for node in NODES:
            print(node, lab.ssh(node, "cat /run/kit-queue.log").stdout)
        lab.do("up")
        with contextlib.suppress(AssertionError):
            print(made.kit("status"), *made.kit("logs").splitlines()[-60:], sep="\n")
            made.kit("cancel", *jobs_of(made))
        made.kit("queue", "down")
        for node in NODES:
            lab.ssh(node, "systemctl disable --now kit-host; rm -f /usr/local/bin/kit-host")
            lab.ssh(node, "rm -rf /var/lib/kit /etc/kit /lab/faults /etc/systemd/system/kit-host*")
            lab.ssh(node, f"docker volume rm -f {VOLUMES}; rm -f /run/kit-*")
        for node in reversed(NODES):
            lab.leave_swarm(node)
        lab.do("gpus", "n3")
        lab.do("swarm")


def queue(operator: Operator) -> dict[str, dict[str, Any]]:
    """The jobs of the queue, by name."""
    return {job["job"]: job for job in json.loads(operator.kit("queue", "--json"))["jobs"]}


def jobs_of(operator: Operator) -> list[str]:
    return [name for name, job in queue(operator).items() if job["ended"] is None]


def sizes(operator: Operator) -> dict[str, int]:
    """The number of hosts of each job."""
    return {name: len(job["hosts"]) for name, job in queue(operator).items()}


def world(operator: Operator, job: str) -> int:
    """The ranks that train together now."""
    return sum(len(host["ranks"]) for host in operator.status(job)["hosts"])


def leaders(lab: Lab) -> dict[str, int]:
    """How often the controller of each node has begun to decide."""
    logs = {node: lab.ssh(node, "cat /run/kit-queue.log").stdout for node in NODES}
    return {node: log.count("this controller decides") for node, log in logs.items()}


def test_two_people_share_three_hosts(operator: Operator, lab: Lab) -> None:
    assert "long is in the queue" in operator.kit("submit", "long")
    assert "controller" not in operator.kit("queue")
    wait_for(lambda: world(operator, "long") == 3, "the first job on all hosts")
    # It shrinks for the other's job, as soon as it has had its hosts for a while.
    operator.kit("submit", "short")
    short = queue(operator)["short"]
    assert short["hosts"] or short["why"]  # On a busy machine it begins or runs already.
    killer = threading.Thread(target=kill_controllers, args=(lab, random.Random(1)))
    killer.start()
    wait_for(lambda: sizes(operator) == {"long": 2, "short": 1}, "room for the second job")
    wait_for(lambda: world(operator, "long") == 2, "the first one to go on with two")
    # Its files are deployed again: nothing has changed but what the queue changes.
    again = operator.kit("submit", "long")
    assert "long: runs already, from the same file" in again
    assert "long keeps its place in the queue" in again
    # A session takes its GPU from the queue, and gives it back.
    operator.kit("deploy", "desk")
    assert operator.status("desk")["state"] == "running"
    assert containers(lab, "n3") == ["train-desk"]
    operator.kit("stop", "desk")
    wait_for(lambda: sizes(operator) == {"long": 2, "short": 1}, "the GPU of the session")
    wait_for(lambda: world(operator, "long") == 2, "the first one to have grown")
    killer.join()
    # An owner takes a host back, and lends it again.
    (taken,) = [host for host in queue(operator)["long"]["hosts"] if host != "n1"][:1]
    told = operator.kit("reclaim", taken)
    assert f"{taken} is yours" in told
    assert not containers(lab, taken)
    wait_for(lambda: world(operator, "long") == 1, "the first one to go on with one")
    assert f"{taken}: " in operator.kit("queue")
    operator.kit("lend", taken)
    wait_for(lambda: sizes(operator) == {"long": 2, "short": 1}, "the host to be used again")
    wait_for(lambda: world(operator, "long") == 2, "the first one to have grown")
    assert operator.status("long")["restarts"] == 0
    goes_on = re.findall(r"continues? at step (\d+)", operator.kit("logs", "long"))
    assert goes_on
    assert list(map(int, goes_on)) == sorted(map(int, goes_on))
    # On the host itself: by its program, and by a process on its GPU.
    operator.kit("host", "prepare", taken, "--run", "--yes")
    assert "this machine is yours" in lab.ssh(taken, "kit-host reclaim").stdout
    # Swarm may start the task once more before the queue turns its service off.
    wait_for(lambda: not containers(lab, taken), "the host to be empty")
    wait_for(lambda: "a job was ended there by hand" in operator.kit("queue"), "the queue to know")
    lab.ssh(taken, "kit-host lend")
    operator.kit("lend", taken)
    wait_for(lambda: world(operator, "long") == 2, "the first one to have grown again")
    gpu = lab.uuids(taken)[0]
    lab.ssh(taken, START.format(gpu=gpu))
    wait_for(lambda: not containers(lab, taken), "trainings to leave the owner's process alone")
    wait_for(
        lambda: f"{taken}: a job was ended there" in operator.kit("queue"), "the queue to know"
    )
    lab.ssh(taken, "rm /lab/faults; systemctl stop kit-host")
    operator.kit("lend", taken)
    wait_for(lambda: world(operator, "long") == 2, "the first one to have grown once more")
    # The manager that leads is switched off: another one decides.
    before = leaders(lab)
    (leader,) = [node for node in NODES if leads(lab, node)]
    lab.do("kill", leader)
    others = [node for node in NODES if node != leader]
    wait_for(
        lambda: any(leaders(lab)[node] > before[node] for node in others), "another one to decide"
    )
    lab.do("start", leader)
    wait_for(lambda: sizes(operator) == {"long": 2, "short": 1}, "the host that came back")
    operator.kit("cancel", "long", "short")
    wait_for(lambda: not any(containers(lab, node) for node in NODES), "the end of all jobs")
    assert "the queue is empty" in operator.kit("queue")


def kill_controllers(lab: Lab, chance: random.Random) -> None:
    """Kill the controllers of all nodes at random times; the one that decides is among them."""
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.5, 5))
        for node in NODES:
            lab.ssh(node, "kill -KILL $(cat /run/kit-queue.pid)")


def leads(lab: Lab, node: str) -> bool:
    form = "{{.ManagerStatus.Leader}}"
    return lab.docker(node, "node", "inspect", "self", "--format", form) == "true"


def containers(lab: Lab, node: str) -> list[str]:
    """The stacks of trainings with a container on a node."""
    names = lab.docker(node, "ps", "--format", "{{.Names}}").split()
    return [name.partition("_")[0] for name in names if "_train-on-" in name]
