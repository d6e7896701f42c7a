"""`kit doctor` on the lab: a healthy Swarm, faults that are made blindly, and what it leaves."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.conftest import Lab, wait_for
from tests.lab.faults.__main__ import examine
from tests.lab.faults.known import FAULTS, IMAGE
from tests.lab.faults.world import World

pytestmark = pytest.mark.lab
SEED = 6
SLOW = {"KIT-SSH-001", "KIT-SWARM-003", "KIT-SWARM-004", "KIT-SWARM-005", "KIT-DOCKER-002"}
"""Codes of faults that take long to make or to correct; `python -m tests.lab.faults` has all."""
PACED = "environment: {LAB_PACE: '0.2'}\n"
"""A training that leaves the cores to others: see tests/lab/pace."""
FEW = random.Random(SEED).sample([fault for fault in FAULTS if fault.code not in SLOW], 2)


@pytest.fixture(scope="module")
def world(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(lab.settings, tmp_path_factory.mktemp("world"))
    made.prepare()
    yield made
    made.write(())
    made.kit("render")
    made.kit("swarm", "down", "--yes")


def containers(world: World) -> list[str]:
    """The doctor's containers, on all nodes."""
    option = ("ps", "-aq", "--filter", "label=kit.doctor")
    return [
        each for node in world.nodes.all() for each in world.nodes.docker(node, *option).split()
    ]


def test_a_healthy_lab_is_well(world: World) -> None:
    shown = world.kit("doctor")
    assert "all is well" in shown
    assert "ok     KIT-NET-004     4789/udp is open: n1, n2, n3" in shown
    assert "ok     KIT-GPU-007     containers see the planned GPUs and no others: n1, n2" in shown
    assert "ok     KIT-NET-011     ports of the services are open: n1" in shown
    assert "ok     KIT-DATA-004    the data services are healthy: n1, n2" in shown
    assert containers(world) == []
    every = world.kit("doctor", "--passive", "--all")
    assert "ok     KIT-SSH-001     n3: SSH logs in" in every
    assert "KIT-NET-004" not in every
    told = json.loads(world.kit("doctor", "--json", "n1", "n2"))
    assert told["wrong"] == 0
    assert {each["host"] for each in told["findings"]} == {None, "n1", "n2"}


@pytest.mark.parametrize("fault", FEW, ids=lambda fault: fault.code)
def test_a_fault_is_named_and_its_correction_seen(world: World, fault: object) -> None:
    result = examine(world, fault)  # type: ignore[arg-type]
    assert result.named, result
    assert result.healed.findings == ()


def test_safe_faults_are_corrected(world: World) -> None:
    world.nodes.docker("n1", "node", "update", "--label-rm", "kit.job.mnist", "n2")
    world.nodes.docker("n3", "image", "rm", "--force", IMAGE)
    assert "label kit.job.mnist=train-on-n2 is missing" in world.kit(
        "doctor", "--passive", status=1
    )
    refused = world.start("doctor", "--passive", "--fix")
    assert "without a terminal kit cannot ask" in refused.communicate()[1]
    assert "all is well" in world.kit("doctor", "--fix", "--yes")
    assert world.nodes.docker("n3", "image", "ls", "-q", IMAGE)


def held_doctor(world: World) -> subprocess.Popen[str]:
    """Start a doctor that waits for the answer of one of its containers, which is paused.

    A container may end before it can be paused; then another doctor starts.
    """
    for _ in range(5):
        process = world.start("doctor")
        while process.poll() is None:
            found = world.nodes.docker("n1", "ps", "-q", "--filter", "label=kit.doctor").split()
            if found and world.nodes.docker("n1", "pause", found[0], check=False):
                return process
        process.communicate()
    raise AssertionError("no container could be paused")


def test_nothing_is_left_by_an_interrupted_doctor(world: World) -> None:
    process = held_doctor(world)
    try:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode == 130
    finally:
        process.kill()
    wait_for(lambda: not containers(world), "the end of all containers")


def test_a_deploy_is_refused_in_the_words_of_the_doctor(world: World) -> None:
    world.inside("n1", "mv /dev/nvidiactl /dev/nvidiactl.away")
    try:
        refused = world.start("deploy")
        _, said = refused.communicate(timeout=120)
        assert refused.returncode == 1
        assert "n1: Failed to initialize NVML: Unknown Error (KIT-GPU-001)" in said
        assert "mnist cannot run: see kit doctor, or add --skip-doctor" in said
    finally:
        world.inside("n1", "mv /dev/nvidiactl.away /dev/nvidiactl")
    assert "mnist" in world.kit("deploy", "--dry-run")


def test_a_running_job_is_left_alone(world: World) -> None:
    digits = ("dataset: mnist", "dataset: digits")
    world.write([digits, ("epochs: 1", "epochs: 1000"), ("mounts:", f"{PACED}mounts:")])
    world.kit("render")
    world.kit("deploy")
    try:
        before = world.kit("status", "--json")
        shown = world.kit("doctor")
        assert "note   KIT-GPU-007     n1: GPUs of mnist were not tried: train-mnist_train" in shown
        assert "ok     KIT-NET-007     the coordinator can be reached: n1, n2, n3" in shown
        job, was = (json.loads(text)["jobs"][0] for text in (world.kit("status", "--json"), before))
        assert (job["state"], job["restarts"]) == ("running", 0)
        assert job["started"] == was["started"]
        assert [host["state"] for host in job["hosts"]] == ["running", "running"]
    finally:
        world.kit("stop", "mnist")
