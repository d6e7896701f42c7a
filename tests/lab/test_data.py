"""Data sets on a real Swarm: one host stores, the others fetch from it and train."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.client import get
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.operator import Operator, make_operator, one_gpu_each
from tests.lab.settings import IMAGE
from tests.sandbox import ROOT, Project
from tests.targets.test_data import write_cifar10
from tests.trainer.test_trainer_workloads import draw_images

pytestmark = pytest.mark.lab
NODES = ("n1", "n2", "n3")
VOLUME = f"kit-{CLUSTER}_datasets"
JOB = f"""\
image: {IMAGE}
data: [cifar10]
train: {{dataset: cifar10, model: lenet, epochs: 1, batch_size: 16}}
environment: {{OMP_NUM_THREADS: "1"}}
"""
STREAMED = f"""\
image: {IMAGE}
data: [{{name: colours, stream: true}}]
train: {{dataset: shards, model: cnn, epochs: 1, batch_size: 8, image_size: 8}}
environment: {{OMP_NUM_THREADS: "1"}}
"""
ROLES = ("[manager, storage]", "[manager]"), ("  n3:\n", "  n3:\n    roles: [storage]\n")


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """The host without GPUs stores; both others fetch."""
    made = make_operator(lab, project, docker, "swarm")
    made.write({"digits": JOB}, *ROLES, one_gpu_each(lab))
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop")
        made.kit("swarm", "down", "--yes")
        lab.do("swarm")
        for node in NODES:
            lab.ssh(node, f"docker volume rm -f {VOLUME} kit-test_digits-checkpoints")


def test_a_data_set_is_stored_once_and_fetched_by_each_host(
    operator: Operator, lab: Lab, tmp_path: Path
) -> None:
    write_cifar10(tmp_path / "download", samples=200)
    added = operator.kit("data", "add", "cifar10", str(tmp_path / "download"))
    assert "cifar10@1: " in added
    assert "in 6 files on n3" in added
    # People and programs read it from the storage host, if they have the cluster's key.
    address = f"http://{lab.settings.address('n3')}:8090/"
    assert get(address)["error"] == "the key is missing or wrong"
    assert "cifar10" in get(address, token=cluster_key(lab))

    operator.kit("data", "prefetch", "cifar10", "n1")
    (listed,) = json.loads(operator.kit("data", "ls", "--json"))["datasets"]
    assert sorted(listed["complete"]) == ["n1", "n3"]

    operator.kit("deploy")
    wait_for(lambda: operator.status()["state"] == "completed", "the end of the training")
    (listed,) = json.loads(operator.kit("data", "ls", "--json"))["datasets"]
    assert sorted(listed["complete"]) == ["n1", "n2", "n3"]
    operator.kit("stop")
    assert "cifar10@1: deleted on n3" in operator.kit("data", "rm", "cifar10@1", "--yes")
    for node in NODES:
        found = lab.docker(
            node, "run", "--rm", "-v", f"{VOLUME}:/d:ro", "--entrypoint=ls", IMAGE, "/d"
        )
        assert "cifar10" not in found.split() or node == "n3"
    streams(operator, tmp_path)


def cluster_key(lab: Lab) -> str:
    """The key, which is in no file of the host and in no process list."""
    named = ("--filter", f"name={CLUSTER}-platform_data-server")
    server = lab.docker("n3", "ps", "-q", *named).split()[0]
    key = lab.docker("n3", "exec", server, "cat", "/run/secrets/kit-key").strip()
    assert len(key) == 64
    for command in (f"docker inspect {server}", "ps -ef", f"docker logs {server}"):
        assert key not in lab.ssh("n3", command).stdout
    return key


def streams(operator: Operator, folder: Path) -> None:
    """Train on shards that the hosts read from the data server, over the overlay."""
    draw_images(folder / "colours")
    pack = ("trainer.streaming.pack", str(folder / "colours"), str(folder / "shards"))
    subprocess.run([sys.executable, "-m", *pack, "--mib", "0.02"], cwd=ROOT, check=True)
    operator.write({"digits": STREAMED}, *ROLES, one_gpu_each(operator.lab))
    operator.kit("data", "add", "colours", str(folder / "shards"))
    plan = operator.kit("plan")
    assert "streams     colours on n3, " in plan
    assert ": the links allow 2 hosts " in plan
    operator.kit("deploy", "--fresh")
    wait_for(lambda: operator.status()["state"] == "completed", "the end of the training")
    (listed,) = json.loads(operator.kit("data", "ls", "--json"))["datasets"]
    assert listed["complete"] == ["n3"]
    operator.kit("stop")
