"""A divided model on a real Swarm: a shard on each of two nodes, a lost container, another grid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator, one_gpu_each
from tests.lab.settings import IMAGE
from tests.sandbox import Project

pytestmark = [pytest.mark.lab, pytest.mark.long]
JOB = f"""\
image: {IMAGE}
train:
  dataset: text
  path: words.txt
  model: gpt
  options: {{layers: 2, heads: 2, width: 32}}
  context: 16
  epochs: 9999
  batch_size: 8
  optimizer: adamw
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.05"}}
exchange: {{timeout: 10s}}
mounts: [{{bind: /srv/words, to: /data, read_only: true}}]
"""
NODES = ("n1", "n2")
FIND = "find /var/lib/docker/volumes -name 'rank-*.pt'"
WORDS = "the cat sat on the mat and ran far away from a dog "


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, "swarm")
    made.write({"llm": JOB + "parallel: {shard: 2}\n"}, one_gpu_each(lab))
    for node in NODES:
        lab.ssh(node, f"mkdir -p /srv/words && echo '{WORDS * 40}' > /srv/words/words.txt")
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop")
        for node in NODES:
            lab.ssh(node, "docker volume rm -f kit-test_llm-checkpoints; rm -r /srv/words")


def epoch_of(operator: Operator) -> int:
    return int((operator.status("llm")["progress"] or {"epoch": -1})["epoch"])


def test_shards_survive_a_container_and_another_grid(operator: Operator, lab: Lab) -> None:
    operator.kit("deploy", "--detach")
    wait_for(lambda: operator.trains("llm"), "a checkpoint")
    assert operator.status("llm")["world_size"] == 2
    assert "2 replicas or shards" in operator.kit("logs", "llm")
    parts = [lab.ssh(node, FIND).stdout for node in NODES]
    assert "rank-00000.pt" in parts[0]
    assert "rank-00001.pt" in parts[1]
    assert "rank-00000.pt" not in parts[1]

    # A lost container: its host's ranks come back, and all go on from the pieces.
    lab.ssh("n2", "docker kill $(docker ps -q --filter name=train-llm)")
    wait_for(lambda: "resumes at step" in operator.kit("logs", "llm"), "a new start")
    before = epoch_of(operator)
    wait_for(lambda: epoch_of(operator) > before, "an epoch more")

    # Two replicas go on from two shards, each of which is on one host alone.
    reached = epoch_of(operator)
    operator.write({"llm": JOB + "parallel: {data: 2}\n"}, one_gpu_each(lab))
    operator.kit("deploy", "--detach")
    wait_for(lambda: "joins step-" in operator.kit("logs", "llm"), "the other grid")
    wait_for(lambda: epoch_of(operator) > reached, "an epoch of the other grid")
    assert "which was divided by 1 x 1 x 2 x 1" in operator.kit("logs", "llm")
