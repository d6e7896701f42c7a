"""Runs tests/vision in the environment that has a torchvision: `make .tools/.vision` makes it."""

import os
import subprocess

import pytest

from tests.sandbox import ROOT
from tests.trainer.hosts import DEADLINE

pytestmark = pytest.mark.long
PYTHON = ROOT / ".tools" / "vision" / "bin" / "python"


def test_what_needs_torchvision() -> None:
    if not PYTHON.exists() and not os.environ.get("CI"):
        pytest.skip("torchvision is not installed for tests: make .tools/.vision")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/vision"],
        cwd=ROOT,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
