"""Many hosts: the work of a plan, a render and a split grows with their number, not its square.

`tests/bench_render.py` measures the time. Here, calls of functions are counted: their number is the
same on every machine.
"""

from __future__ import annotations

import cProfile
import re
from pathlib import Path

import pytest

from tests.bench_render import GPUS, JOB, inventory
from tests.sandbox import Project, kit

FEW, FACTOR = 75, 4
SHARED = """\
monitoring: {}
registry: {address: gpu0000:5000}
data: {}
"""
SERVER = "image: registry.lab:5000/trainer:0.1.0\njob: resnet\n"


def calls(folder: Path, *arguments: str) -> int:
    """Return the number of calls of Python functions of a command, which must succeed."""
    profile = cProfile.Profile()
    result = profile.runcall(kit, folder, *arguments)
    assert result.status == 0, result.err
    return sum(entry.callcount for entry in profile.getstats())


def write(project: Project, engine: str, hosts: int, *, listed: bool) -> None:
    """Write a project of so many hosts, whose GPUs are listed with their UUIDs, or counted."""
    text = inventory(hosts).replace("engine: swarm", f"engine: {engine}") + SHARED
    text = text.replace("[manager]", "[manager, storage]", 1)
    if not listed:
        text = re.sub(r"gpus:\n(      - .*\n)+", f"gpus: {GPUS}\n", text)
    project.write(text, {"resnet": JOB}, {"resnet": SERVER} if listed else {})


@pytest.mark.parametrize("engine", ["swarm", "compose"])
@pytest.mark.parametrize(
    ("arguments", "listed"),
    [
        (("render", "--diff"), True),
        (("render", "--diff"), False),
        (("split", "--infer", "50", "--dry-run"), True),
    ],
)
def test_the_work_grows_with_the_hosts(
    engine: str, arguments: tuple[str, ...], listed: bool, project: Project
) -> None:
    write(project, engine, FEW, listed=listed)
    calls(project.folder, *arguments)  # Imports, and templates that are compiled once.
    few = calls(project.folder, *arguments)
    write(project, engine, FACTOR * FEW, listed=listed)
    many = calls(project.folder, *arguments)
    assert many < 1.03 * FACTOR * few, f"{few:,} calls for {FEW} hosts, {many:,} for {FACTOR}×"
