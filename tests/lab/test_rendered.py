"""Rendered stacks need no kit: the files, Docker's own command, and a training completes.

Cheaper tests hold the files to Docker's schema; that a Swarm runs them is shown here alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.settings import STAND_IN
from tests.sandbox import JOB, Project

pytestmark = pytest.mark.lab
TRAINING = JOB.replace("registry.lab:5000/trainer:0.2.0", STAND_IN).replace(
    "epochs: 10", "epochs: 1"
)


def states(lab: Lab, service: str) -> list[str]:
    form = "{{.CurrentState}} {{.Error}}"
    return lab.docker("n1", "service", "ps", "--no-trunc", "--format", form, service).splitlines()


def test_rendered_stacks_deploy_and_train(lab: Lab, project: Project, docker: Docker) -> None:
    project.write(lab.inventory(), {"digits": TRAINING})
    tree = project.rendered(cluster="test")
    remote = Docker(docker.program, {**docker.env, **lab.environment("n1")})
    program = Path(docker.program).parent
    path = f"{lab.environment('n1')['PATH']}{os.pathsep}{program}"
    env = {**os.environ, **remote.env, "PATH": path}
    subprocess.run(["sh", "label-nodes.sh"], cwd=tree, env=env, check=True, capture_output=True)
    stacks = {"test-platform": "platform.stack.yaml", "train-digits": "train-digits.stack.yaml"}
    for name, file in stacks.items():
        deployed = remote.run("stack", "deploy", "-c", file, name, folder=tree)
        assert deployed.returncode == 0, deployed.stderr
    services = ["train-digits_train-on-n1", "train-digits_train-on-n2"]
    try:
        for service in services:
            wait_for(
                lambda: any(state.startswith("Complete") for state in states(lab, service)),  # noqa: B023
                f"{service} to end",
            )
    except AssertionError:
        for service in ["train-digits_rendezvous", *services]:
            print(service, *states(lab, service), lab.docker("n1", "service", "logs", service))
        raise
    finally:
        for name in reversed(stacks):
            assert remote.run("stack", "rm", name).returncode == 0
