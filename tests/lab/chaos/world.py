"""A lab in which a job trains over three nodes, as an operator with kit sees it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.lab.chaos.steps import Taken, Witness, is_whole, since
from tests.lab.conftest import Lab
from tests.lab.host import Engine
from tests.lab.nodes import Nodes, each
from tests.lab.operator import Operator
from tests.lab.settings import IMAGE

NODES = ("n1", "n2", "n3")
MANAGER = "n1"
JOB = "digits"
STACK = f"train-{JOB}"
ENDLESS = 99999
"""More epochs than a run has time for."""
SAMPLES = 1437
"""Training samples of digits."""
VOLUME = f"/var/lib/docker/volumes/kit-test_{JOB}-checkpoints/_data"
PATIENCE = 240.0
"""Seconds after which a training that takes no steps counts as lost."""
TRAIN = f"""\
image: {IMAGE}
train:
  dataset: digits
  model: cnn
  epochs: EPOCHS
  batch_size: 32
  learning_rate: 0.05
  schedule: constant
checkpoint: {{every_epochs: 1}}
exchange: {{timeout: 10s}}
hosts: {{gpus_per_host: 1, min: 2}}
"""
WATCHED = """\
environment: {OMP_NUM_THREADS: "1", LAB_PACE: "0.2", LAB_WITNESS: /witness, LAB_TURN: "TURN"}
mounts:
  - {bind: /lab/witness, to: /witness}
user: "65534:65534"
"""
CALM = 'environment: {OMP_NUM_THREADS: "1"}\n'


class ViolatedError(Exception):
    """What must hold did not; the run cannot go on."""


@dataclass(frozen=True)
class Said:
    """A line of a container, and when it was written, as time.monotonic()."""

    time: float
    node: str
    text: str


class World:
    """The nodes, the operator, and the steps of the training."""

    def __init__(self, lab: Lab, operator: Operator, draw: Random) -> None:
        """`draw` decides all that is left to chance."""
        self.lab, self.operator, self.draw = lab, operator, draw
        self.nodes = Nodes(lab.settings, Engine(lab.settings))
        self.witness = Witness({node: self._folder(node) for node in NODES})
        self.turn = 0

    def _folder(self, node: str) -> Path:
        return self.lab.settings.node(node) / "witness"

    def prepare(self) -> None:
        """Give the third node a GPU, and each a folder for the steps."""
        self.nodes.gpus("n3", ("TITAN RTX",))
        for node in NODES:
            folder = self._folder(node)
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)  # The training is nobody.

    def write(self, *, epochs: int = ENDLESS, turn: int | None = None) -> None:
        """Write and render the job; another `turn` is a change of it that needs new processes."""
        self.describe(epochs=epochs, turn=turn)
        self.operator.kit("render")

    def describe(self, *, epochs: int = ENDLESS, turn: int | None = None) -> None:
        """Write the inventory and the job, without rendering."""
        self.turn = self.turn if turn is None else turn
        text = (TRAIN + WATCHED).replace("EPOCHS", str(epochs)).replace("TURN", str(self.turn))
        self.operator.project.write(self.lab.inventory(), {JOB: text})

    def inventory(self) -> str:
        return (self.operator.project.folder / "inventory.yaml").read_text()

    def write_calm(self, epochs: int) -> None:
        """Write the same job for a run without faults, which nothing slows down."""
        self.operator.write({JOB: (TRAIN + CALM).replace("EPOCHS", str(epochs))})

    # ---- What there is

    def inside(self, node: str, script: str) -> str:
        """Run a script in a node."""
        return self.nodes.inside(node, "sh", "-c", script)

    def pids(self, node: str, what: str) -> list[int]:
        """The processes of a node, in its own numbers, whose command line has these words."""
        told = self.inside(node, "ps -eo pid=,args=")
        lines = [line.split(None, 1) for line in told.splitlines()]
        return [int(pid) for pid, words in lines if re.search(what, words)]

    def containers(self, node: str, part: str = "train-on") -> list[str]:
        """The running containers of the job on a node."""
        name = f"name={STACK}_{part}"
        return self.nodes.docker(node, "ps", "--quiet", "--filter", name).split()

    def steps(self) -> list[Taken]:
        return [*self.witness.steps()]

    def newest(self) -> Taken:
        return self.witness.steps()[-1]

    def first(self) -> str:
        """The node of rank 0."""
        return next(each.host for each in reversed(self.witness.steps()) if each.rank == 0)

    def status(self) -> dict[str, Any]:
        return self.operator.status(JOB)

    def said(self, after: float) -> list[Said]:
        """The lines of the job's containers after a time, in order."""
        found: list[Said] = []
        for node in NODES:
            form = ("ps", "--all", "--quiet", "--filter", f"name={STACK}_")
            for container in self.nodes.docker(node, *form).split():
                found += self._lines(node, container, after)
        return sorted(found, key=lambda line: line.time)

    def _lines(self, node: str, container: str, after: float) -> list[Said]:
        ahead = time.time() - time.monotonic()
        begin = f"{after + ahead:.3f}"
        merged = f"docker logs --timestamps --since {begin} {container} 2>&1 || true"
        lines = (line.partition(" ") for line in self.inside(node, merged).splitlines())
        stamped = [(stamp, text) for stamp, _, text in lines if stamp.startswith("20")]
        return [Said(moment(stamp) - ahead, node, text) for stamp, text in stamped]

    def remains(self) -> list[str]:
        """Everything of the job on the nodes but its volumes."""
        found: list[str] = []
        for kind in ("service", "config", "secret", "network"):
            names = self.nodes.docker(MANAGER, kind, "ls", "--format", "{{.Name}}").splitlines()
            found += [f"{kind} {name}" for name in names if STACK in name]
        for node in NODES:
            names = self.nodes.docker(node, "ps", "--all", "--format", "{{.Names}}").splitlines()
            found += [f"container {name} on {node}" for name in names if name.startswith(STACK)]
            pids = self.pids(node, r"/opt/kit/trainer/|-m trainer\.")
            found += [f"process {pid} on {node}" for pid in pids]
        return found

    # ---- Waiting

    def require(self, holds: bool, what: str) -> None:
        """Raise ViolatedError with `what` is wrong, unless it holds."""
        if not holds:
            raise ViolatedError(what)

    def wait_for(
        self, condition: Callable[[], object], what: str, seconds: float = PATIENCE
    ) -> None:
        """Wait until a condition holds; raises ViolatedError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ViolatedError(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.2)

    def wait_until_whole(self, after: float, what: str) -> None:
        """Wait until all nodes train together after a time."""
        self.wait_for(
            lambda: is_whole(since(self.witness.steps(), after), len(NODES)),
            f"all nodes to train {what}",
        )

    def wait_for_end(self) -> dict[str, Any]:
        """Wait for the end of the training; return its status."""
        ends = {"completed", "stopped", "failed"}
        self.wait_for(lambda: self.status().get("state") in ends, "the end of the training", 900)
        return self.status()

    def forget(self) -> None:
        """Remove the checkpoints of the run that is over."""
        for node in NODES:
            self.nodes.docker(node, "volume", "rm", "--force", f"kit-test_{JOB}-checkpoints")

    def clear(self) -> None:
        """Undo what a fault that was interrupted has left: all nodes run and are connected."""
        for node in NODES:
            state = self.nodes.engine.docker(
                "inspect",
                "--format={{.State.Status}} {{len .NetworkSettings.Networks}}",
                self.lab.settings.container(node),
            )
            if state.startswith("paused"):
                self.nodes.power("unpause", node)
            if state.endswith(" 0"):
                self.nodes.cable("connect", node)
        each(lambda node: self.nodes.power("start", node), NODES)


def moment(stamp: str) -> float:
    """Seconds since 1970 of a time stamp of Docker, which has nanoseconds."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", stamp)).timestamp()


def told_job(output: str) -> dict[str, Any]:
    """The job in what `kit status --json` has printed; empty if it is none."""
    try:
        jobs = json.loads(output)["jobs"]
    except (ValueError, KeyError):
        return {}
    return next((job for job in jobs if job["job"] == JOB), {})
