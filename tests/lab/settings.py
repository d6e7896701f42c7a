"""The settings of a lab, and the names, addresses, GPUs and files that follow from them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
REGISTRY = "registry.lab:5000"
IMAGE = f"{REGISTRY}/trainer:lab"
STAND_IN = f"{REGISTRY}/stand-in:lab"
"""The trainer's image with stand_in/train.py in place of the training: it imports no PyTorch."""
BASE = f"{REGISTRY}/python:lab"

MODELS = {  # memory in MiB and compute capability, as nvidia-smi prints them
    "TITAN RTX": (24576, "7.5"),
    "Quadro GV100": (32768, "7.0"),
    "A100-SXM4-80GB": (81920, "8.0"),
}
GPUS: Mapping[str, tuple[str, ...]] = {  # two unequal desktops, and a machine without
    "n1": ("TITAN RTX",),
    "n2": ("TITAN RTX", "Quadro GV100"),
}


RESERVED = {"cache", "engine", "lock"}
"""Names beside the labs' folders."""


class LabError(Exception):
    """An error with a message of one line; `status` is 2 if the user can correct it."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Gpu:
    """A stand-in for a GPU, as the nodes' table lists it."""

    index: int
    uuid: str
    memory: int
    capability: str
    model: str

    def line(self) -> str:
        return f"{self.index} {self.uuid} {self.memory} {self.capability} {self.model}\n"

    @classmethod
    def read(cls, line: str) -> Gpu:
        index, identifier, memory, capability, model = line.split(maxsplit=4)
        return cls(int(index), identifier, int(memory), capability, model.strip())


def gpu(node: str, index: int, model: str) -> Gpu:
    """A GPU whose UUID follows from node and index: the same in every lab."""
    if model not in MODELS:
        raise LabError(f"{model!r} is not a known model; name one of {', '.join(MODELS)}", 2)
    identifier = uuid.uuid5(uuid.NAMESPACE_DNS, f"{index}.{node}.{model}")
    return Gpu(index, f"GPU-{identifier}", *MODELS[model], model)


@dataclass(frozen=True)
class Settings:
    """One lab. Several stand beside each other with names and networks of their own."""

    home: Path
    """Caches and the engine that all labs of this machine share."""
    name: str
    network: str
    nodes: int
    heartbeat: str
    with_swarm: bool
    suite: str
    mirror: str | None
    python: Path

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def engine(self) -> Path:
        return self.home / "engine"

    @property
    def torch(self) -> Path:
        """The folder of this lab's PyTorch: another lab's checkout may have another version."""
        return self.folder / "torch"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def bridge(self) -> str:
        return f"kit-{self.name}"

    @property
    def services(self) -> str:
        """The address of the registry and the name server."""
        return f"{self.network}.2"

    def address(self, node: str) -> str:
        return f"{self.network}.{10 + int(node[1:])}"

    def container(self, node: str) -> str:
        return f"kit-{self.name}-{node}"

    def node(self, node: str) -> Path:
        return self.folder / "nodes" / node

    def bare(self, node: str) -> Path:
        """The mark of a node that lacks what a person installs on a host."""
        return self.node(node) / "bare"

    def socket(self, node: str) -> Path:
        """The node's engine, from outside."""
        return self.node(node) / "docker.sock"

    def gpus(self, node: str) -> list[Gpu]:
        """The GPUs that were set for the node, else the default."""
        table = self.node(node) / "gpus"
        if table.exists():
            return [Gpu.read(line) for line in table.read_text().splitlines()]
        return [gpu(node, i, model) for i, model in enumerate(GPUS.get(node, ()))]


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the environment.

    Raises:
        LabError: One of them is invalid.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    settings = Settings(
        home=Path(environ.get("KIT_LAB") or cache / "kit-lab").absolute(),
        name=environ.get("KIT_LAB_NAME", "lab"),
        network=environ.get("KIT_LAB_NET", "10.77.0"),
        nodes=count(environ.get("KIT_LAB_NODES", "3")),
        heartbeat=environ.get("KIT_LAB_HEARTBEAT", "5s"),
        with_swarm=environ.get("KIT_LAB_SWARM", "yes") != "no",
        suite=environ.get("KIT_LAB_SUITE", "trixie"),
        mirror=environ.get("KIT_LAB_MIRROR"),
        python=Path(environ.get("KIT_LAB_PYTHON") or PROJECT / ".venv" / "bin" / "python"),
    )
    if not settings.name.isalnum() or len(settings.name) > 8 or settings.name in RESERVED:
        raise LabError(f"KIT_LAB_NAME: {settings.name!r} is not a name of up to 8 letters", 2)
    if len(str(settings.socket("n9"))) > 100:  # Linux takes 107 bytes
        raise LabError(f"KIT_LAB: {settings.home} is too long a path for sockets in it", 2)
    return settings


def count(text: str) -> int:
    """Read a number of nodes.

    Raises:
        LabError: It is not a number from 1 to 9.
    """
    if not text.isdigit() or not 1 <= int(text) <= 9:
        raise LabError(f"{text!r} is not a number of nodes; a lab has 1 to 9", 2)
    return int(text)
