"""Faults of jobs on a real Swarm: what keeps them from starting, what ends them, killed deploys."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.lab.conftest import NODES, Lab, wait_for
from tests.lab.operator import Operator
from tests.lab.settings import STAND_IN
from tests.lab.test_swarm import (
    ELASTIC,
    TRAIN,
    hosts,
    leftovers,
    listed,
    on,
    operator,
    tasks,
)

__all__ = ["hosts", "operator"]
pytestmark = pytest.mark.lab


def test_what_keeps_a_job_from_starting_is_told(operator: Operator, hosts: Lab) -> None:
    operator.write({"digits": TRAIN.replace(STAND_IN, "registry.lab:5000/trainer:none")})
    output = operator.kit("deploy", status=1)
    assert "the host cannot get the image registry.lab:5000/trainer:none" in output
    assert "`kit stop digits` removes it" in output
    operator.kit("stop", "digits")

    operator.write({"digits": TRAIN})
    reserve = ("--generic-resource", "kit_gpu=1", "--constraint", "node.labels.kit.host==n2")
    name = ("--name", "somebody", "--label", "com.docker.stack.namespace=somebodys")
    hosts.docker(
        "n1",
        "service",
        "create",
        "--detach",
        *name,
        *reserve,
        "--entrypoint",
        "sleep",
        STAND_IN,
        "600",
    )
    try:
        wait_for(lambda: "Running" in hosts.docker("n1", "service", "ps", "somebody"), "the holder")
        output = operator.kit("deploy", status=1)
        held = "2 GPUs wanted, n2 offers 2 GPUs to Swarm, somebodys holds 1"
        assert f"digits: {held}" in output
        wait_for(lambda: not leftovers(hosts), f"an end of {leftovers(hosts)}")
    finally:
        hosts.docker("n1", "service", "rm", "somebody")

    hosts.do("stop", "n2")
    try:
        wait_for(lambda: "Down" in hosts.docker("n1", "node", "ls"), "n2 to be missed")
        output = operator.kit("deploy", status=1)
        assert "digits: n2 is down, and it needs 2 hosts" in output
        assert leftovers(hosts, ["n1", "n3"]) == set()
    finally:
        hosts.do("start", "n2")
        wait_for(lambda: "Down" not in hosts.docker("n1", "node", "ls"), "n2 to be back")


def test_a_mistake_in_the_input_ends_a_job_with_its_reason(operator: Operator, hosts: Lab) -> None:
    operator.write({"digits": TRAIN.replace("dataset: digits", "dataset: cifar10")})
    output = operator.kit("deploy", status=1)
    assert "cifar10 is not complete in any of" in output
    assert "it was ended, because no restart can help" in output
    wait_for(lambda: not leftovers(hosts), f"an end of {leftovers(hosts)}")
    status = operator.status()
    assert (status["state"], status["checkpoint"]) == ("failed", None)
    assert "cifar10 is not complete in any of" in status["failure"]


CLOSED = "OUTPUT -p tcp --dport 5000 -j REJECT --reject-with tcp-reset"


def test_a_registry_that_is_away_ends_no_deploy(operator: Operator, hosts: Lab) -> None:
    """Only a real engine says in its own words why there is no image, and gives a task up."""
    new = "registry.lab:5000/trainer:new"
    on(hosts, "n1", f"docker pull -q {STAND_IN}; docker tag {STAND_IN} {new}; docker push -q {new}")
    try:
        for node in NODES:
            on(hosts, node, f"docker rmi {new}; iptables -I {CLOSED}")
        operator.write({"digits": ELASTIC.replace(STAND_IN, new)})
        deploy = operator.start("deploy")
        wait_for(lambda: "Shutdown Rejected" in states(hosts)[0], "Swarm to give up")
        assert deploy.poll() is None
    finally:
        for node in NODES:
            on(hosts, node, f"while iptables -D {CLOSED}; do :; done 2>/dev/null")
    said, _ = deploy.communicate(timeout=120)
    assert deploy.returncode == 0, said
    assert "its registry does not answer (connection refused)" in said
    assert operator.status()["state"] == "running"


def states(lab: Lab) -> list[str]:
    """The desired and the present state of the tasks of n2's part, the newest first."""
    form = "{{.DesiredState}} {{.CurrentState}}"
    listed = ("service", "ps", "--format", form, "train-digits_train-on-n2")
    return lab.call("docker", "n1", *listed).stdout.splitlines() or [""]


def failures(lab: Lab) -> int:
    """The tasks that have failed; the newest one is followed by another within seconds."""
    return sum("Failed" in state for state in states(lab))


def has_failed_since(lab: Lab, before: int) -> bool:
    """Whether another task has failed."""
    return failures(lab) > before


def kill_training(lab: Lab) -> None:
    """Kill n2's container in any state."""
    found = "docker ps --quiet --filter name=train-digits_train"
    wait_for(lambda: on(lab, "n2", found), "a container to kill")
    on(lab, "n2", f"docker kill $({found})")


def test_a_host_out_of_restarts_comes_back_and_may_leave(operator: Operator, hosts: Lab) -> None:
    operator.write({"digits": ELASTIC})
    operator.kit("deploy")
    # Two starts, instead of the ten of the rendered file.
    once = ("--restart-max-attempts", "1", "train-digits_train-on-n2")
    hosts.docker("n1", "service", "update", "--detach", *once)
    wait_for(lambda: "Running Running" in states(hosts)[0], "the task with the new limit")
    for _ in range(2):
        before = failures(hosts)
        kill_training(hosts)
        wait_for(partial(has_failed_since, hosts, before), "Swarm to see it")
    wait_for(lambda: "Shutdown Failed" in states(hosts)[0], "Swarm to give up")
    first = tasks(hosts, "train-digits")

    status = operator.status()
    assert status["state"] == "running"
    said = "n2: ended with exit status 137: see kit logs; its restarts are used up"
    assert said in status["message"]
    assert re.search(r"start digits again on n2 +its rest", operator.kit("deploy", "--dry-run"))
    assert "digits/n2: running" in operator.kit("deploy")
    assert first < tasks(hosts, "train-digits")  # n1 and the coordinator continue.
    wait_for(lambda: operator.status()["message"] == "", "its log to be readable")

    inventory = hosts.inventory()
    n2 = inventory[inventory.index("  n2:") : inventory.index("  n3:")]
    operator.write({"digits": ELASTIC}, (n2, ""))
    assert "train-digits.stack.yaml" in operator.kit("deploy")
    assert [host["host"] for host in operator.status()["hosts"]] == ["n1"]
    wait_for(lambda: not on(hosts, "n2", "docker ps --quiet --filter name=train-"), "n2 to be free")
    told = operator.kit("swarm", "up", "--dry-run")
    assert "note: n2 is in the Swarm and not in the inventory" in told


def test_a_deploy_that_is_killed_is_followed_by_a_whole_one(operator: Operator, hosts: Lab) -> None:
    operator.write({"digits": ELASTIC})
    killed = operator.start("deploy")
    assert killed.stdout is not None
    wait_for(lambda: "train-digits_train-on-n2" in listed(hosts, "service"), "half of it")
    killed.kill()
    killed.communicate()
    left = operator.start("deploy")
    said, _ = left.communicate(timeout=240)
    if left.returncode:  # It was killed while it had the lock.
        assert "has been deploying for" in said
        assert "Traceback" not in said
    assert "digits/n2: running" in operator.kit("deploy", "--break-lock")

    # Of two concurrent deploys, one runs, and the other names its user.
    operator.write({"digits": ELASTIC.replace("batch_size: 32", "batch_size: 16")})
    both = [operator.start("deploy") for _ in range(2)]
    texts = [process.communicate(timeout=240)[0] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 1]), texts
    assert all("Traceback" not in text for text in texts)
    if codes == [0, 1]:
        assert any("deploying" in text for text in texts)
    assert "runs already" in operator.kit("deploy")
    assert operator.status()["state"] == "running"
