"""From two hosts with Docker and a driver to a training, by the commands of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import make_operator
from tests.lab.settings import IMAGE
from tests.lab.test_prepare import mirror
from tests.sandbox import ROOT, Project

__all__ = ["mirror"]
pytestmark = pytest.mark.lab
PAGE = (ROOT / "docs/start/bare-hosts.md").read_text(encoding="utf-8")


@pytest.fixture
def bare(lab: Lab) -> Iterator[None]:
    """n2 and n3 have a driver and Docker alone, and are in no swarm."""
    lab.do("gpus", "n3", "TITAN RTX")
    for node in ("n2", "n3"):
        lab.do("bare", node)
    yield
    for node in ("n2", "n3"):
        lab.do("bare", node)
    lab.do("gpus", "n2", "TITAN RTX", "Quadro GV100")
    lab.do("gpus", "n3")
    lab.do("swarm")


def commands() -> list[str]:
    """The commands of the page, in order, without comments."""
    found = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in found]


@pytest.mark.usefixtures("bare")
def test_two_bare_hosts_train_after_five_commands(
    lab: Lab, project: Project, docker: Docker, mirror: str
) -> None:
    operator = make_operator(lab, project, docker, "swarm")
    path = f"{Path(sys.executable).parent}{os.pathsep}{operator.env['PATH']}"
    init, prepare, swarm, build, deploy = commands()
    assert "image build" in build  # The lab has an image, and no PyTorch to build one from.
    # As on the page, with the lab's names, repository and image; and nobody is there to answer.
    init = init.replace("user1@pc1,user2@pc2", f"user1@n2,user1@n3 --image {IMAGE}")
    prepare = prepare.replace("--run", f"--run --yes --toolkit {mirror}")
    script = [init, prepare, swarm.replace("swarm up", "swarm up --yes"), deploy]
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", "\n".join(("set -e", *script))],
        cwd=project.folder,
        env={**operator.env, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    operator = make_operator(lab, Project(project.folder / "pool"), docker, "swarm")
    try:
        wait_for(lambda: (operator.status().get("progress") or {}).get("step"), "a step")
        print(f"two bare hosts to a step: {time.monotonic() - began:.0f} s")
        status = operator.status()
        assert {each["host"]: each["devices"] for each in status["hosts"]} == {
            node: lab.uuids(node) for node in ("n2", "n3")
        }
    finally:
        operator.kit("stop", "--all")
        operator.kit("swarm", "down", "--yes")
