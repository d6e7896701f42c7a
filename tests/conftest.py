"""Fixtures of all tests: a project in its own folder, and a docker CLI."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests import runs, times
from tests.sandbox import ROOT, Project

LAB = "tests/lab/"
LONGEST = (
    *(f"{LAB}test_{name}." for name in ("queue", "code", "split", "session", "files", "report")),
    LAB,
    "tests/test_vision",
    "tests/trainer/test_trainer_",
    "tests/trainer/",
    "tests/targets/",
)

# Threads of several test processes would spin while they wait for each other: three times the CPU.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# `yaml.safe_load` by libyaml: the tests read large rendered files, and PyYAML's own parser is slow.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment, misc]

settings.register_profile(
    "kit",
    deadline=None,  # the machines that run the tests also run other work
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--note", help="note this run in docs/testing.md, with these arguments")


def pytest_configure(config: pytest.Config) -> None:
    times.register(config)
    note = config.getoption("note")
    if note is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(runs.Note(note), "note")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: at the end, small files keep all processes busy."""

    def turn(item: pytest.Item) -> int:
        return next((n for n, at in enumerate(LONGEST) if item.nodeid.startswith(at)), len(LONGEST))

    items.sort(key=turn)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@dataclass(frozen=True)
class Docker:
    """A docker CLI without an engine."""

    program: str
    env: dict[str, str] = field(default_factory=dict)

    def usable(self) -> bool:
        return all(
            self.run(*command).returncode == 0
            for command in (("compose", "version"), ("stack", "config", "--help"))
        )

    def run(self, *arguments: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.program, *arguments],
            cwd=folder,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def find_docker() -> Docker:
    """Return the machine's docker, or the one that tests/docker-cli fetches.

    Raises:
        FileNotFoundError: There is none.
    """
    found = shutil.which("docker")
    if found and Docker(found).usable():
        return Docker(found)
    script = subprocess.run(
        [str(ROOT / "tests" / "docker-cli")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    tools = ROOT / ".tools" / "docker"
    own = Docker(str(tools / "docker"), {"DOCKER_CONFIG": str(tools)})
    if script.returncode == 0 and own.usable():
        return own
    raise FileNotFoundError(f"no docker CLI with compose and stack config: {script.stderr.strip()}")


@pytest.fixture(scope="session")
def docker() -> Docker:
    """A docker CLI; in CI, its lack is a failure, not a skip."""
    try:
        return find_docker()
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
