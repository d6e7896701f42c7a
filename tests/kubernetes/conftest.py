"""The fixtures of the tests on a cluster of Kubernetes."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import GPU, JOB, Story, able_nodes, inventory, own_namespace
from tests.sandbox import Project


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test that disturbs nodes or the API server run alone, beside which none other runs."""
    alone = request.node.get_closest_marker("alone")
    with (Path(tempfile.gettempdir()) / "kit-test-kubernetes.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture
def story(project: Project) -> Iterator[Story]:
    able = able_nodes()
    assert len(able) >= 2, f"two nodes with {GPU} are needed; the cluster has {able}"
    with own_namespace() as namespace:
        project.write(inventory(namespace, able[:3]), {"digits": JOB})
        project.rendered()
        yield Story(project, namespace, tuple(able[:3]))
