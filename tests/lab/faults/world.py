"""A lab with a project, in which faults are made and kit doctor looks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.faults.known import DATA, IMAGE, Fault
from tests.lab.files import inventory
from tests.lab.host import Engine, run
from tests.lab.nodes import Nodes, each
from tests.lab.settings import Settings

JOB = f"""\
image: {IMAGE}
train: {{dataset: mnist, model: cnn, epochs: 1, batch_size: 64}}
limits: {{shared_memory: 256MiB}}
mounts:
  - {{bind: {DATA}, to: /data, read_only: true}}
"""
SERVICES = f"data: {{image: {IMAGE}}}\n"
"""The data services run: their ports are open and in their own use."""
SIZES = '{"datasets": [{"name": "flowers", "version": 1, "bytes": 3000000000}]}'
FILES = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]
PATIENCE = 300


@dataclass(frozen=True)
class Seen:
    """What the doctor found that is not well, and its exit status."""

    status: int
    findings: tuple[dict[str, Any], ...]

    @property
    def wrong(self) -> tuple[dict[str, Any], ...]:
        return tuple(each for each in self.findings if each["verdict"] == "wrong")


class World:
    """A lab of three nodes in a swarm, and a folder with an inventory and a job."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.engine = Engine(settings)
        self.nodes = Nodes(settings, self.engine)
        self._known: frozenset[str] = frozenset()

    def inside(self, node: str, script: str) -> str:
        return self.nodes.inside(node, "sh", "-c", self._filled(script))

    def prepare(self) -> None:
        """Bring all nodes to what a healthy cluster has: image, data, labels, network."""
        made = "; ".join(f"head -c 4000 /dev/zero >{DATA}/{name}" for name in FILES)
        each(lambda node: self.inside(node, f"mkdir -p {DATA}; {made}"), self.nodes.all())
        each(lambda node: self.nodes.docker(node, "pull", "-q", IMAGE), self.nodes.all())
        token = self.nodes.docker("n1", "swarm", "join-token", "--quiet", "worker")
        each(lambda node: self.inside(node, f"echo {token} >/lab/token"), self.nodes.all())
        self.write(())
        self.kit("render")
        self.kit("swarm", "up", "--yes")
        self._known = frozenset(each["code"] for each in self.look().findings)

    def write(self, edits: Sequence[tuple[str, str]]) -> None:
        """Write the inventory and the job, with changes."""
        described = inventory(self.settings, self.nodes.all()) + SERVICES
        files = {"inventory.yaml": described, "job": JOB}
        for before, after in edits:
            found = [name for name, text in files.items() if self._filled(before) in text]
            assert found, before
            text = files[found[0]]
            files[found[0]] = text.replace(self._filled(before), self._filled(after), 1)
        (self.folder / "jobs").mkdir(exist_ok=True)
        (self.folder / "inventory.yaml").write_text(files["inventory.yaml"])
        (self.folder / "jobs" / "mnist.yaml").write_text(files["job"])
        (self.folder / "datasets.json").write_text(SIZES)

    def _filled(self, text: str) -> str:
        for node in self.nodes.all():
            text = text.replace(f"ADDRESS-{node}", self.settings.address(node))
        return text.replace("CLUSTER", self.settings.name)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kit as a person would, with the lab's ssh."""
        path = f"{self.settings.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # A shell's background processes ignore Ctrl-C, and their children do.
        return subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, "-m", "kit", *arguments],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kit(self, *arguments: str, status: int | None = 0) -> str:
        """Run kit to its end; return its output."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert status is None or process.returncode == status, f"{out}{err}"
        assert "Traceback" not in err, err
        return out

    def look(self, *options: str) -> Seen:
        """Run the doctor; findings that the healthy lab has too are left out."""
        process = self.start("doctor", "--json", *options)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode in {0, 1}, err
        bad = [each for each in json.loads(out)["findings"] if each["verdict"] != "ok"]
        return Seen(
            process.returncode,
            tuple(e for e in bad if e["verdict"] == "wrong" or e["code"] not in self._known),
        )

    def inject(self, fault: Fault) -> None:
        """Make a fault."""
        self.write((*fault.edits, *fault.wrong))
        if fault.edits or fault.wrong:
            self.kit("render")
        if fault.torch:
            self._replace_torch(*fault.torch)
        if fault.bridge_mtu:
            self._bridge_mtu(fault.node, fault.bridge_mtu)
        if fault.inject:
            self.inside(fault.node, fault.inject)

    def heal(self, fault: Fault) -> None:
        """Correct a fault; its edits that are not wrong stay for a healthy run."""
        if fault.heal:
            self.inside(fault.node, fault.heal)
        if fault.bridge_mtu:
            self._bridge_mtu(fault.node, 1500)
        if fault.torch:
            self._restore_torch()
        self.write(fault.edits)
        self.kit("render")
        if fault.code == "KIT-SWARM-005":  # It is a new node, and was another one meanwhile.
            self.kit("swarm", "up", "--yes")
            gone = "docker node ls | awk '/ Down / {print $1}' | xargs -r docker node rm --force"
            self.inside("n1", gone)

    def _bridge_mtu(self, node: str, mtu: int) -> None:
        """Change the MTU of the other end of a node's cable: the node does not see it."""
        index = self.inside(node, "cat /sys/class/net/eth0/iflink").strip()
        links = json.loads(run("ip", "-json", "link"))
        name = next(link["ifname"] for link in links if str(link["ifindex"]) == index)
        run("ip", "link", "set", name, "mtu", str(mtu))

    def _replace_torch(self, cuda: str, archs: str) -> None:
        """Let the image's PyTorch say that it was built for CUDA: there is no GPU here."""
        folder = self.settings.torch
        for path in (folder / "torch" / "version.py", folder / "lab_pace.py"):
            path.rename(path.with_name(f"{path.name}.away"))
        text = (folder / "torch" / "version.py.away").read_text()
        changed = text.replace("+cpu", "+cu126") + f"\ncuda = {cuda!r}\n"
        (folder / "torch" / "version.py").write_text(changed)
        (folder / "lab_pace.py").write_text(
            f"def begin():\n    import torch\n    torch._C._cuda_getArchFlags = lambda: {archs!r}\n"
        )

    def _restore_torch(self) -> None:
        folder = self.settings.torch
        for path in (folder / "torch" / "version.py", folder / "lab_pace.py"):
            path.with_name(f"{path.name}.away").rename(path)
