"""`kit discover` in Kubernetes: nodes and the labels of GPU feature discovery."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from kit.targets.kubernetes.nodes import compare, read_node
from tests.sandbox import Project

INVENTORY = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
hosts:
  n1: {address: 10.0.0.1, gpus: 1}
  n9: {address: 10.0.0.9, gpus: 1}
"""


def node(name: str, gpus: int, product: str = "", **spec: Any) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name}
    if product:
        labels |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81559"}
    return {
        "metadata": {"name": f"{name}.example", "labels": labels},
        "spec": spec,
        "status": {
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{name[1:]}"}],
            "allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


NODES = [node("n1", 2, "H100"), node("n2", 2, "H100", unschedulable=True), node("n3", 0)]


@pytest.fixture
def project(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a program in place of kubectl that prints the nodes."""
    (tmp_path / "nodes.json").write_text(json.dumps({"items": NODES}))
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/nodes.json\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return project.write(INVENTORY)


def test_nodes_are_compared_with_the_inventory(project: Project) -> None:
    result = project.kit("discover")
    assert result.status == 0, result.err
    notes = [line for line in result.out.splitlines() if line.startswith("note: ")]
    gpu = "{index: 0, model: H100, memory: 81559MiB}, {index: 1, model: H100, memory: 81559MiB}"
    assert notes == [
        "note: n9 is no node: remove it, or correct its name",
        "note: n1 offers 2 GPUs, the inventory has 1",
        f"note: add to hosts: `n2: {{address: 10.0.0.2, gpus: [{gpu}]}}`",
        "note: all are alike: `nodes: {count: 2, gpus: 2, product: H100}` is a pool of them",
    ]
    assert "cordoned" in result.out


def test_the_facts_are_json(project: Project) -> None:
    found = json.loads(project.kit("discover", "--json").out)
    assert [each["name"] for each in found["hosts"]] == ["n1", "n2", "n3"]
    assert found["hosts"][0] == {
        "name": "n1",
        "address": "10.0.0.1",
        "gpus": 2,
        "product": "H100",
        "memory": 81559 * 2**20,
        "why": "",
    }


def test_the_proposed_line_is_valid(project: Project) -> None:
    line = read_node(NODES[0]).entry
    text = INVENTORY.partition("hosts:")[0] + f"hosts:\n  {line}\n"
    assert project.write(text).kit("plan").status == 0


def test_a_cluster_without_gpus_is_told() -> None:
    assert "no node offers nvidia.com/gpu" in next(compare([read_node(NODES[2])], (), pool=False))


A_POOL = """\
cluster: lab
engine: kubernetes
kubernetes: {namespace: training}
nodes: {count: 2, gpus: GPUS}
"""
POOLS = {
    "1": "the pool has 2 nodes, and 1 with 1 GPU take pods (n2 is cordoned)",
    "4, product: H100": (
        "the pool has 2 nodes, and 0 with 4 GPUs of H100 take pods (n2 is cordoned)"
    ),
    "2, product: A100": "no node has GPUs of the product A100: nodes have H100",
}


@pytest.mark.parametrize("gpus", POOLS)
def test_the_nodes_of_a_pool_are_counted(project: Project, gpus: str) -> None:
    project.write(A_POOL.replace("GPUS", gpus))
    assert project.kit("discover").out.endswith(f"note: {POOLS[gpus]}\n")
