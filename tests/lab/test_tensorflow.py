"""A script of TensorFlow on a real Swarm: two workers that find each other, and a lost host."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE
from tests.sandbox import ROOT, Project

pytestmark = [pytest.mark.lab, pytest.mark.long]
IMAGE = "registry.lab:5000/tensorflow:lab"
PACKAGES = ROOT / ".tools" / "tensorflow" / "lib"
SHOWN = "/opt/torch/.tensorflow"
"""Where nodes see the packages: below the folder of this machine that all of them see."""
JOB = f"""\
image: {IMAGE}
framework: tensorflow
command: [mirrored.py, "60", "0.2"]
working_dir: /workspace
mounts:
  - {{bind: /srv/line, to: /workspace, read_only: true}}
  - {{bind: {SHOWN}, to: /opt/tensorflow, read_only: true}}
hosts: {{names: [n2, n3]}}
environment: {{SAVED: /tmp/saved, TF_CPP_MIN_LOG_LEVEL: "3", TF_ENABLE_ONEDNN_OPTS: "0"}}
"""
# The nodes share no storage: each start begins at the first step.
SCRIPT = re.sub(
    r"saver\.checkpoint\.restore\(.*\n",
    "",
    (ROOT / "tests" / "trainer" / "mirrored.py").read_text(encoding="utf-8"),
)


def show_packages(lab: Lab) -> None:
    """Link TensorFlow's packages to the folder that the nodes see."""
    [packages] = PACKAGES.glob("python*/site-packages")
    place = lab.settings.torch / SHOWN.rpartition("/")[2]
    if not place.exists():
        same = packages.stat().st_dev == lab.settings.torch.stat().st_dev
        shutil.copytree(packages, place, copy_function=os.link if same else shutil.copy2)


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """A Swarm with an image that finds TensorFlow, and the script on two workers."""
    if not PACKAGES.exists() and not os.environ.get("CI"):
        pytest.skip("TensorFlow is not installed for tests: make .tools/.tensorflow")
    show_packages(lab)
    dockerfile = f"FROM {BASE}\\nENV PYTHONPATH=/opt/tensorflow"
    build = f"DOCKER_BUILDKIT=0 docker build -q -t {IMAGE} -"
    made = lab.ssh("n1", f"printf '{dockerfile}' | {build} && docker push -q {IMAGE}")
    assert made.returncode == 0, made.stderr
    lab.do("gpus", "n3", "TITAN RTX")
    for node in ("n2", "n3"):
        lab.ssh(node, f"mkdir -p /srv/line && cat >/srv/line/mirrored.py <<'END'\n{SCRIPT}\nEND")
    user = make_operator(lab, project, docker, "swarm")
    user.write({"line": JOB})
    user.kit("swarm", "up", "--yes")
    try:
        yield user
    finally:
        sys.stdout.write(user.kit("logs"))
        lab.do("start", "n3")
        with contextlib.suppress(AssertionError):
            user.kit("stop")
        for node in ("n2", "n3"):
            lab.ssh(node, "rm -rf /srv/line")
        lab.do("gpus", "n3")


def test_two_workers_train_and_begin_again_with_a_host_that_was_lost(
    lab: Lab, operator: Operator
) -> None:
    operator.kit("deploy", "--detach")

    def log(host: str) -> str:
        return operator.kit("logs", "--host", host)

    wait_for(lambda: "step 5 loss" in log("n2"), "the script to train")
    assert "worker 0 of 2 replicas" in log("n2")
    assert "worker 1 of 2 replicas" in log("n3")
    lab.do("kill", "n3")
    wait_for(lambda: "stops its workers" in log("n2"), "the other to notice")
    lab.do("start", "n3")
    wait_for(lambda: log("n2").count("worker 0 of 2 replicas") == 2, "another start")
    wait_for(lambda: operator.status("line")["state"] == "completed", "the end")
    for host in ("n2", "n3"):
        assert "slope 3.0000" in log(host)
