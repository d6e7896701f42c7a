"""A project in its own folder: writes a user's files, and runs kit on them."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from kit import cli
from kit.paths import Paths
from kit.plan.work import Plan
from kit.project import load_lowered
from kit.targets.lowered import Lowered
from kit.targets.swarm.stacks import Stack
from kit.workload.types import Workload

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 300

INVENTORY = """\
cluster: lab
engine: swarm
hosts:
  pc1:
    address: 192.168.8.151
    roles: [manager]
    gpus:
      - {uuid: GPU-a, memory: 24GiB}
  pc2:
    address: 192.168.8.114
    gpus:
      - {uuid: GPU-b}
      - {uuid: GPU-c, use: inference}
network: {speed: 1Gbit}
"""
JOB = """\
image: registry.lab:5000/trainer:0.2.0
train:
  dataset: digits
  model: cnn
  epochs: 10
  batch_size: 64
"""
SERVER = """\
image: registry.lab:5000/trainer:0.2.0
job: digits
"""
COMMAND = """\
image: pytorch/pytorch:2.2.2-cuda12.1-cudnn8-devel
command: [ddp.py, "50", "10"]
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


def kit(folder: Path, *arguments: str) -> Result:
    """Run the command line in this process, `folder` being the working directory."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["kit", *arguments]),
    ):
        status = cli._run()
    return Result(status, out.getvalue(), err.getvalue())


def kit_process(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run the command line in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "kit", *arguments],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every path below `folder` with its content; None if it is not a file."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file()
        else bytes(path.readlink())
        if path.is_symlink()
        else None
        for path in sorted(folder.rglob("*"))
    }


@dataclass(frozen=True)
class Project:
    """A folder with an inventory and jobs."""

    folder: Path

    def write(
        self,
        inventory: str | bytes | None = INVENTORY,
        jobs: Mapping[str, str | bytes] | None = None,
        servers: Mapping[str, str] | None = None,
    ) -> "Project":
        """Write all files anew; a job's may be named with its suffix."""
        folder, serving = self.folder / "jobs", self.folder / "serve"
        shutil.rmtree(serving, ignore_errors=True)
        for each in (folder, *([serving] if servers else [])):
            each.mkdir(parents=True, exist_ok=True)
        for older in folder.iterdir():
            older.unlink()
        files = {} if inventory is None else {self.folder / "inventory.yaml": inventory}
        files |= {serving / f"{name}.yaml": text for name, text in (servers or {}).items()}
        for name, text in ({"digits": JOB} if jobs is None else jobs).items():
            files[folder / (name if "." in name else f"{name}.yaml")] = text
        for path, text in files.items():
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def kit(self, *arguments: str) -> Result:
        return kit(self.folder, *arguments)

    def lowered(self) -> Lowered:
        return load_lowered(Paths(self.folder / "inventory.yaml", None, None, None))

    def plan(self) -> Plan:
        return self.lowered().plan

    def stack(self, index: int = 0) -> Stack:
        """A job's rendered stack."""
        stacks = [each.values["stack"] for each in self.lowered().outputs if each.stack]
        stack = stacks[index]
        assert isinstance(stack, Stack)
        return stack

    def workload(self) -> Workload:
        """The first job."""
        return self.lowered().workloads[0]

    def rendered(self, *arguments: str, cluster: str = "lab") -> Path:
        """Render and return the tree."""
        result = self.kit("render", *arguments)
        assert (result.status, result.err) == (0, "")
        return self.folder / "compose" / cluster


def document_text(workload: Workload) -> str:
    """Return what the workload's containers read."""
    assert workload.document
    return workload.document.text
