"""Fixtures of all tests: a project in its own folder, and a docker CLI."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.sandbox import ROOT, Project

LAB = "tests/lab/"
SHARED = {
    "swarm": ("swarm", "split", "chaos"),
    "hosts": (
        "bench",
        "data",
        "discover",
        "doctor",
        "monitoring",
        "prepare",
        "prepare_swarm",
        "short_way",
    ),
}
LABS = {f"{LAB}test_{file}.py": lab for lab, files in SHARED.items() for file in files}
"""The lab of a file's tests, one of three that run side by side; the third has no name here."""
LONGEST = (
    LAB,
    "tests/test_vision",
    "tests/trainer/test_trainer_",
    "tests/trainer/",
    "tests/targets/",
)

REAL = (LAB, "tests/trainer/", "tests/vision/")
"""Tests of real processes or engines on two shared cores: a time limit of the tested programs may
run out there. One that fails is run once more; pure tests are not, as they must never vary."""

# Threads of several test processes would spin while they wait for each other: three times the CPU.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "kit",
    deadline=None,  # the machines that run the tests also run other work
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kit")


class _Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives one worker the tests of a file, or all tests that share a lab."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return f"{LAB}{LABS.get(file, '')}" if file.startswith(LAB) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Groups:
    """Distribute the tests; marks for xdist's own groups have no effect with pytest 9.2."""
    return _Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: at the end, small files keep all processes busy."""

    def turn(item: pytest.Item) -> int:
        return next((n for n, at in enumerate(LONGEST) if item.nodeid.startswith(at)), len(LONGEST))

    items.sort(key=turn)
    for item in items:
        if item.nodeid.startswith(REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why tests were run once more: an intermittent failure may be a fault of the code."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"run once more: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


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
