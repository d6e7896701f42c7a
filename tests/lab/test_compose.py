"""The Compose engine on the lab's hosts: real engines, real SSH."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator

import pytest

from kit.targets.compose.folder import HostFolder
from tests.conftest import Docker
from tests.lab.client import get, ready
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE, STAND_IN
from tests.sandbox import Project

pytestmark = pytest.mark.lab
HOSTS = ["n1", "n2"]
JOB = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 2000, batch_size: 32, learning_rate: 0.05}}
checkpoint: {{every_epochs: 1}}
# Longer than any test, at its ease: who wants the end gives it fewer epochs, and no rest.
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
"""
TRAINS = JOB.replace(STAND_IN, IMAGE)
"""With the real training."""
SERVER = f"image: {IMAGE}\njob: digits\n"
STEPS = 15
"""Steps of an epoch: 1,437 samples in global batches of 96."""
LEFT = ("ps --all --quiet --filter label=kit.cluster", "network ls --quiet --filter name=train-")


def left(lab: Lab) -> list[str]:
    """The containers and networks of jobs on the hosts."""
    return [
        line
        for host in HOSTS
        for command in LEFT
        for line in lab.docker(host, *command.split()).splitlines()
    ]


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, "compose")
    made.write({"digits": JOB})
    try:
        yield made
    finally:
        for host in HOSTS:
            ours = lab.docker(host, *LEFT[0].split()).split()
            if ours:
                lab.docker(host, "rm", "--force", *ours)
            lab.docker(host, "network", "prune", "--force")
            with contextlib.suppress(AssertionError):
                lab.docker(host, "volume", "rm", "kit-test_digits-checkpoints")
            lab.ssh(host, "rm -rf .local/share/kit")


def test_a_job_trains_is_stopped_and_goes_on(operator: Operator, lab: Lab) -> None:
    assert "digits: started as 2 hosts, world size 3" in operator.kit("deploy")
    wait_for(operator.trains, "a checkpoint")
    status = operator.status()
    assert status["state"] == "running"
    assert status["progress"]["steps"] == STEPS * 2000
    parts = {host["host"]: host for host in status["hosts"]}
    assert [parts[host]["devices"] for host in HOSTS] == [lab.uuids(host) for host in HOSTS]
    ranks = [rank for host in HOSTS for rank in parts[host]["ranks"]]
    assert (len(parts["n2"]["ranks"]), sorted(ranks)) == (2, [0, 1, 2])
    assert "digits: runs already, from the same file" in operator.kit("deploy")
    assert "digits runs on n1, n2: end it" in operator.kit("deploy", "--fresh", status=1)

    stopped = operator.kit("stop")
    assert "digits stopped after" in stopped
    assert left(lab) == []
    assert operator.status()["state"] == "stopped"
    ended = operator.status()["progress"]
    step, epochs = ended["step"], ended["epoch"] + 12
    assert f"checkpoint: step-{step:08d} in kit-test_digits-checkpoints on n1, n2" in stopped

    quick = JOB.replace('LAB_PACE: "0.1"', 'LAB_PACE: "0"').replace(
        "epochs: 1}", "epochs: 1, keep: 99}"
    )
    operator.write({"digits": quick.replace("epochs: 2000", f"epochs: {epochs}")})
    # A host without its checkpoints fetches them from the other.
    lab.docker("n1", "volume", "rm", "kit-test_digits-checkpoints")
    output = operator.kit("deploy", "--wait")
    lines = output.splitlines()
    assert f"resumes at step {step}, " in output
    volume = "/var/lib/docker/volumes/kit-test_digits-checkpoints/_data"
    assert f"step-{step:08d}" in lab.ssh("n1", f"ls {volume}").stdout.split()
    for host in HOSTS:
        devices = ",".join(lab.uuids(host))
        told = [line for line in lines if f"on {host}, cpu, NVIDIA_VISIBLE_DEVICES" in line]
        assert len(told) == len(lab.uuids(host))
        assert all(re.match(rf"{host} [012] \| ", line) and line.endswith(devices) for line in told)
    # Lines of two hosts that are followed are in order only within half a second.
    read = operator.kit("logs").splitlines()
    ends = [number for number, line in enumerate(read) if "becomes the agent" in line]
    begins = [number for number, line in enumerate(read) if ", local rank " in line]
    assert len(ends) == len(HOSTS)
    assert max(ends) < min(begins)
    assert "digits completed after" in lines[-2]
    last = f"step-{STEPS * epochs:08d} in kit-test_digits-checkpoints on n1, n2"
    assert lines[-1] == f"checkpoint: {last}"
    assert operator.status()["progress"]["accuracy"] > 0.97
    assert sorted(line for line in lines if " | " in line) == sorted(
        operator.kit("logs").splitlines()
    )
    assert "digits completed" in operator.kit("stop", "digits")
    assert left(lab) == []
    assert operator.kit("stop") == "nothing is running\n"
    written = f"cat .local/share/kit/{CLUSTER}/history.jsonl"
    history = lab.ssh("n1", written).stdout.splitlines()
    assert [json.loads(line)["job"] for line in history] == ["digits", "digits"]


def test_what_was_removed_by_hand_is_named_and_restored(operator: Operator, lab: Lab) -> None:
    """Only real engines show that no field of a real container counts as changed."""
    operator.kit("deploy")
    wait_for(operator.trains, "a checkpoint")
    assert "nothing to do" in operator.kit("deploy", "--dry-run")
    lab.docker("n1", "stop", "test_train-digits-rendezvous-1")
    wait_for(
        lambda: "its coordinator on n1" in operator.status()["message"], "the status to say it"
    )
    shown = operator.kit("deploy", "--dry-run")
    assert re.search(r"n1 +restart the coordinator of digits; .* +it does not run", shown)
    assert "end digits" not in shown
    lab.docker("n2", "rm", "--force", "test_train-digits-train-1")
    operator.kit("deploy")
    assert "nothing to do" in operator.kit("deploy", "--dry-run")
    wait_for(lambda: operator.status()["world_size"] == 3, "both hosts to train")
    lab.docker("n1", "update", "--restart", "no", "test_train-digits-train-1")
    changed = "changed by hand: train: restart is no, not on-failure:10"
    assert changed in " ".join(operator.kit("deploy", "--dry-run").split())


def test_a_job_that_moves_to_another_host_takes_its_checkpoints_along(
    operator: Operator, lab: Lab
) -> None:
    """Only two real engines show that the copied files are the training's own, with its owner."""
    operator.write({"digits": JOB + "hosts: {names: [n2]}\n"})
    operator.kit("deploy")
    wait_for(operator.trains, "a checkpoint")
    operator.write({"digits": JOB + "hosts: {names: [n1]}\n"})
    assert "copy the checkpoints of digits from n2" in operator.kit("deploy", "--dry-run")
    operator.kit("deploy")
    wait_for(lambda: "resumes at step" in operator.kit("logs", "digits"), "n1 to go on")
    wait_for(operator.trains, "a checkpoint of n1")
    assert [host["host"] for host in operator.status()["hosts"]] == ["n1"]


def test_what_is_missing_is_told_and_nothing_is_started(operator: Operator, lab: Lab) -> None:
    operator.write({"digits": JOB.replace(STAND_IN, "registry.lab:5000/trainer:none")})
    output = operator.kit("deploy", status=1)
    for host in HOSTS:
        assert f"{host}: pull registry.lab:5000/trainer:none: " in output
    assert "nothing was changed on any host" in output

    absent = "GPU-00000000-0000-0000-0000-000000000000"
    operator.write({"digits": JOB}, (lab.uuids("n2")[1], absent))
    output = operator.kit("deploy", status=1)
    listed = ", ".join(lab.uuids("n2"))
    assert f"n2: {absent} does not exist; `nvidia-smi -L` lists {listed}" in output
    assert left(lab) == []


def test_a_start_that_fails_on_one_host_is_taken_back_on_all(operator: Operator, lab: Lab) -> None:
    # A container of another owner with the name of kit's container.
    lab.docker("n2", "create", "--name", "test_train-digits-train-1", STAND_IN)
    try:
        output = operator.kit("deploy", status=1)
        assert "n2: start digits: Error response from daemon: Conflict" in output
        assert "digits was removed again from n1, n2" in output
        assert left(lab) == []
        assert "test_train-digits-train-1" in lab.docker("n2", "ps", "--all")
    finally:
        lab.docker("n2", "rm", "test_train-digits-train-1")


def test_a_mistake_in_the_input_ends_a_job_with_its_reason(operator: Operator, lab: Lab) -> None:
    operator.write({"digits": JOB.replace("dataset: digits", "dataset: cifar10")})
    output = operator.kit("deploy", status=1)
    assert "cifar10 is not complete in any of" in output
    assert "it was ended, because no restart can help" in output
    assert left(lab) == []
    status = operator.status()
    assert (status["state"], status["checkpoint"]) == ("failed", None)
    assert "cifar10 is not complete in any of" in status["failure"]


def test_a_host_that_is_down(operator: Operator, lab: Lab) -> None:
    operator.kit("deploy")
    lab.do("stop", "n2")
    try:
        assert "n2: cannot be reached: " in operator.kit("deploy", status=1)
        assert "n2 cannot be reached" in operator.status()["message"]
        assert "n2 cannot be reached: containers there continue" in operator.kit("stop")
        assert lab.docker("n1", *LEFT[0].split()) == ""
    finally:
        lab.do("start", "n2")
    assert "digits stopped after" in operator.kit("stop", "digits")
    assert left(lab) == []


def test_a_secret_reaches_the_training_alone(operator: Operator, lab: Lab) -> None:
    tells = (
        f"image: {IMAGE}\ncommand: [-m, tell]\nworking_dir: /workspace\nsecrets: {{TOKEN: env}}\n"
    )
    mount = "mounts: [{bind: /srv/tell, to: /workspace}]\nhosts: {names: [n1]}\n"
    script = "import os; print('backwards', os.environ['TOKEN'][::-1])"
    lab.ssh("n1", f'mkdir -p /srv/tell && echo "{script}" >/srv/tell/tell.py')
    operator.write({"digits": tells + mount})
    assert "the variable is not set here" in operator.kit("deploy", status=2)
    output = operator.kit("deploy", "--wait", TOKEN="hush-3")
    assert "n1 0 | backwards 3-hsuh" in output
    container = lab.docker(
        "n1", "ps", "--all", "--quiet", "--filter", "name=test_train-digits-train"
    )
    assert "hush-3" not in lab.docker("n1", "inspect", container)
    operator.kit("stop", "digits")


def test_a_second_operator_meets_the_lock(
    operator: Operator, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", operator.env["PATH"])
    folder = HostFolder(operator.project.plan().hosts[0], CLUSTER)
    with folder.locked(print):
        output = operator.kit("deploy", status=1)
        assert f"(process {os.getpid()}) has been deploying for " in output
        assert f"~/.local/share/kit/{CLUSTER}/lock on n1" in output
        assert "kit deploy --break-lock" in output
        folder.break_lock()
        with folder.locked(print):
            assert "has been deploying for" in operator.kit("deploy", status=1)
    operator.kit("deploy")
    operator.kit("stop")
    assert left(lab) == []


def test_checkpoints_are_offered_to_those_with_the_clusters_key(
    operator: Operator, lab: Lab
) -> None:
    """The server on n2 fetches from n1, whose endpoint refuses everybody else."""
    serving = lab.uuids("n2")[1]
    job = TRAINS.replace("epochs: 2000", "epochs: 12") + "hosts: {names: [n1]}\n"
    change = (f"uuid: {serving},", f"uuid: {serving}, use: inference,")
    operator.write({"digits": job}, change, servers={"digits": SERVER})
    operator.kit("deploy")
    url = f"http://{lab.settings.address('n2')}:8080"
    wait_for(lambda: ready(url), "a checkpoint of n1, served on n2")
    offered = f"http://{lab.settings.address('n1')}:8081/checkpoints"
    assert get(offered)["error"] == "the token is missing or wrong"
    folder = f".local/share/kit/{CLUSTER}/key"
    key = lab.ssh("n1", f"cat {folder}/kit-key").stdout
    assert (len(key), lab.ssh("n1", f"stat -c %a {folder}").stdout) == (64, "700\n")
    assert lab.ssh("n2", f"cat {folder}/kit-key").stdout == key
    assert get(offered, token=key)[0]["host"] == "n1"
    for host in HOSTS:
        every = "docker ps -q | xargs -n 1 docker"
        shown = lab.ssh(host, f"{every} inspect; {every} logs; ps -ef")
        assert key not in shown.stdout + shown.stderr
        assert '"ReadonlyRootfs": true' in shown.stdout
    operator.kit("stop", "--all")
