"""The committed examples are held against the real docker CLI."""

from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.sandbox import ROOT

STACKS = sorted(path.relative_to(ROOT) for path in (ROOT / "compose").rglob("*.stack.yaml"))
PROJECTS = sorted(path.relative_to(ROOT) for path in (ROOT / "compose").rglob("*.compose.yaml"))


def test_there_are_examples_of_both_kinds() -> None:
    assert len(STACKS) >= 5
    assert PROJECTS


@pytest.mark.parametrize("path", STACKS, ids=str)
def test_docker_stack_takes_the_file(docker: Docker, path: Path) -> None:
    result = docker.run("stack", "config", "-c", str(path))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize("path", PROJECTS, ids=str)
def test_docker_compose_takes_the_file(docker: Docker, path: Path) -> None:
    result = docker.run("compose", "-f", str(path), "config")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout
