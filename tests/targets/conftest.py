"""The fixture of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets.cluster import Cluster, cluster_in


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two hosts with 1 + 2 processes; remaining processes are ended."""
    with cluster_in(tmp_path) as made:
        yield made
