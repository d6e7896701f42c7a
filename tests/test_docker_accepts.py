"""The real docker CLI accepts the committed examples."""

from pathlib import Path

import pytest
import yaml

from tests.conftest import Docker
from tests.sandbox import INVENTORY, JOB, ROOT, Project

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


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_an_empty_value_is_not_the_operators(
    project: Project, docker: Docker, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    job = JOB + 'environment: {HTTP_PROXY: "", no_proxy: ""}\n'
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    tree = project.write(inventory, {"digits": job}).rendered()
    for name in ("HTTP_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "http://operator:password@proxy")
    if engine == "swarm":
        result = docker.run("stack", "config", "-c", "train-digits.stack.yaml", folder=tree)
    else:
        file = "hosts/pc1/train-digits.compose.yaml"
        result = docker.run("compose", "-f", file, "config", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")
    assert "password" not in result.stdout
    for service in yaml.safe_load(result.stdout)["services"].values():
        # Swarm replaces placeholders in a task: this one with an empty text.
        assert service["environment"].get("HTTP_PROXY", "") in {"", '{{""}}'}
