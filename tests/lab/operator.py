"""An operator with a project and access to the lab's hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Docker
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.sandbox import Project
from tests.warm import warm_kit

PATIENCE = 240


@dataclass(frozen=True)
class Operator:
    """Runs kit as a person would, in a folder of its own."""

    lab: Lab
    project: Project
    engine: str
    env: dict[str, str]

    def start(
        self, *arguments: str, python: str = sys.executable, **variables: str
    ) -> subprocess.Popen[str]:
        """Start kit without waiting for its end."""
        # A shell's background processes ignore Ctrl-C, and so do their children.
        return subprocess.Popen(
            ["env", "--default-signal=INT", python, "-m", "kit", *arguments],
            cwd=self.project.folder,
            env={**self.env, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @contextlib.contextmanager
    def forwarded(self, *arguments: str) -> Iterator[str]:
        """Run `kit forward`, which ends with 0 after Ctrl-C; the line that it prints first."""
        process = self.start("forward", *arguments)
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0

    def kit(self, *arguments: str, status: int = 0, **variables: str) -> str:
        """Run kit to its end and return its output; its imports would be half of its work."""
        process = self.start(*arguments, python=warm_kit().executable, **variables)
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == status, output
        # A training's own lines may contain one.
        assert "Traceback" not in output or arguments[0] == "logs"
        return output

    def status(self, job: str = "digits") -> dict[str, Any]:
        """Return the status of a job or a server from JSON; empty if there is none."""
        told = json.loads(self.kit("status", "--json"))
        every = told["jobs"] + told["servers"]
        return next((entry for entry in every if entry["job"] == job), {})

    def progress(self, job: str = "digits") -> dict[str, Any]:
        """Return a job's progress, once its log can be read: a busy engine may be late with it."""
        found: dict[str, Any] = {}

        def read() -> bool:
            found.update(self.status(job).get("progress") or {})
            return bool(found)

        wait_for(read, f"the progress of {job}")
        return found

    def split(self, *arguments: str) -> str:
        """Move GPUs, and render."""
        made = self.kit("split", *arguments, "--yes")
        self.kit("render")
        return made

    def trains(self, job: str = "digits") -> bool:
        """Whether a job has its first checkpoint."""
        status = self.status(job)
        progress = status.get("progress")
        return bool(progress and progress["step"] > 0 and status["checkpoint"])

    def write(
        self,
        jobs: Mapping[str, str],
        *changes: tuple[str, str],
        servers: Mapping[str, str] | None = None,
    ) -> Path:
        """Describe nodes, jobs and servers, the inventory with changes; return the tree."""
        inventory = self.lab.inventory().replace("engine: swarm", f"engine: {self.engine}")
        for before, after in changes:
            assert before in inventory
            inventory = inventory.replace(before, after)
        self.project.write(inventory, jobs, servers)
        self.kit("render")
        return self.project.folder / "compose" / CLUSTER


def one_gpu_each(lab: Lab) -> tuple[str, str]:
    """A change of the inventory: n2 trains by one GPU as n1; a rank more would import PyTorch."""
    second = lab.uuids("n2")[1]
    return f"uuid: {second},", f"uuid: {second}, use: inference,"


def make_operator(lab: Lab, project: Project, docker: Docker, engine: str) -> Operator:
    """Return an operator whose ssh and docker reach the nodes."""
    folders = (lab.settings.folder / "bin", Path(docker.program).parent, os.environ["PATH"])
    path = os.pathsep.join(map(str, folders))
    env = {**os.environ, **docker.env, "PATH": path, "OMP_NUM_THREADS": "1"}
    return Operator(lab, project, engine, env)
