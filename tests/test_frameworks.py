"""Scripts of other frameworks on several hosts, with their real packages.

`make .tools/.vision` installs them; docs/how-to/frameworks.md shows what each needs.
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.sandbox import ROOT
from tests.trainer.hosts import Hosts, Task, hosts

pytestmark = pytest.mark.long
PYTHON = ROOT / ".tools" / "vision" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "frameworks"


@pytest.fixture
def python() -> str:
    if not PYTHON.exists() and not os.environ.get("CI"):
        pytest.skip("the frameworks are not installed for tests: make .tools/.vision")
    return str(PYTHON)


def run(local: Hosts, framework: str, steps: int, **more: str) -> list[Task]:
    """Run a framework's script on two hosts to the end."""
    job, endpoint = local.folder / "job.json", local.rendezvous(script=True)
    command = [str(SCRIPTS / f"with_{framework}.py"), str(steps)]
    job.write_text(json.dumps({"name": framework, "command": command}))
    tasks = []
    for name in ("pc1", "pc2"):
        saved = local.folder / "saved"  # On storage that all hosts share.
        tasks.append(local.agent(name, job, endpoint, 1, "2:2", SAVED=saved, **more))
    for task in tasks:
        assert task.wait() == 0, task.text
    return tasks


def begins(tasks: list[Task]) -> list[tuple[int, ...]]:
    """The rank, the world size and the first step of each process."""
    found = (re.findall(r"rank (\d+) of (\d+), begins at (\d+)", task.text) for task in tasks)
    return [tuple(map(int, each)) for lines in found for each in lines]


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("accelerate", {"ACCELERATE_USE_CPU": "true"}),
        ("transformers", {"ACCELERATE_USE_CPU": "true"}),
        ("lightning", {}),
        ("deepspeed", {}),
    ],
)
def test_a_framework_trains_on_two_hosts_and_resumes(
    framework: str, more: dict[str, str], python: str, tmp_path: Path
) -> None:
    more = more | {"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    with hosts(tmp_path, python=python) as local:
        first = run(local, framework, 5, **more)
        assert {*begins(first)} >= {(0, 2, 0), (1, 2, 0)}
        again = run(local, framework, 10, **more)
        assert {*begins(again)} >= {(0, 2, 5), (1, 2, 5)}
        assert "step 10 " in again[0].text
