"""The fixture of the engine's tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.cluster import INVENTORY, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two hosts with 1 + 2 processes; whatever it leaves running is ended."""
    made = Cluster(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    yield made
    for process in made.processes():
        process.send_signal(signal.SIGKILL)
    for child in made.started:
        child.wait(timeout=30)
        if child.stdout is not None:
            child.stdout.close()
