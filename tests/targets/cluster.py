"""The local engine is tested with real processes: a project, a state directory, the real CLI."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.ports import free_port
from tests.sandbox import DEADLINE
from tests.warm import python_of_engine

INVENTORY = """\
cluster: test
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  pc2: {address: 192.168.8.114, gpus: 2}
"""


def wait_for(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Wait for a state, and fail with its name when it does not come.

    It polls at most a third of the time: a `kit status` would keep a core busy.
    """
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(max(0.05, 2 * (time.monotonic() - began)))
        began = time.monotonic()


@dataclass
class Cluster:
    """A project folder with its own state directory."""

    folder: Path
    cold: bool = False
    """Whether each process imports kit and PyTorch itself, as users' processes do."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state" / "kit" / "test"

    @property
    def environment(self) -> dict[str, str]:
        # One thread each: those of several trainings would wait for each other.
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own}

    def job(self, name: str, text: str) -> None:
        port = f"rendezvous: {{port: {free_port()}}}\n"
        (self.folder / "jobs" / f"{name}.yaml").write_text(f"image: none\n{port}{text}")

    def script(self, name: str, text: str) -> None:
        """Write the script of a job that runs in this folder."""
        (self.folder / f"{name}.py").write_text(text)
        self.job(
            name,
            f"command: [{name}.py]\nworking_dir: /workspace\nstop_grace_period: 20s\n"
            f"mounts: [{{bind: {self.folder}, to: /workspace}}]\n",
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `kit` and leave it running."""
        # What it starts, too: supervisors, launchers and ranks use its Python.
        python = sys.executable if self.cold else python_of_engine()
        process = subprocess.Popen(
            [python, "-m", "kit", *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.started.append(process)
        return process

    def kit(self, *arguments: str, status: int = 0) -> str:
        """Run `kit` to its end, check its exit status and return its output."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == status, output
        return output

    def processes(self) -> list[psutil.Process]:
        """All living processes that carry this cluster's state directory."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("XDG_STATE_HOME") == str(self.folder / "state")
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@contextmanager
def cluster_in(
    folder: Path, inventory: str = INVENTORY, *, cold: bool = False
) -> Iterator[Cluster]:
    """A cluster called test; its remaining processes are ended."""
    made = Cluster(folder, cold)
    (folder / "jobs").mkdir()
    (folder / "inventory.yaml").write_text(inventory)
    try:
        yield made
    finally:
        for process in made.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for child in made.started:
            child.wait(timeout=DEADLINE)
            if child.stdout is not None:
                child.stdout.close()
