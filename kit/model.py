"""The inventory and the jobs as values: made by `kit.config`, read by `kit.plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kit.errors import Loc
from trainer.contract.job import Checkpoint, Exchange, Train

Lock = Mapping[str, str]
"""Digests (`sha256:…`) by the names of images as people write them."""


AUTO = "auto"
"""As an interface: the one that leads to the rendezvous, which the launcher finds."""


class EngineName(StrEnum):
    """The targets: what carries the plan out."""

    LOCAL = "local"
    COMPOSE = "compose"
    SWARM = "swarm"


class Use(StrEnum):
    """What a GPU is for."""

    TRAINING = "training"
    INFERENCE = "inference"
    NONE = "none"


def resource_of(device: str) -> str:
    """Return the name by which daemon.json offers a GPU to Swarm: its UUID, or `gpu0` for an index.

    A bare index would be read as a count (moby's genericresource.ParseCmd).
    """
    return f"gpu{device}" if device.isdecimal() else device


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG instance.

    `id` is its UUID, or its index on the host where the UUID is not known; `memory` is in bytes.
    """

    id: str
    known: bool
    model: str | None
    memory: int | None
    use: Use

    @property
    def resource(self) -> str:
        """Its name as the host's daemon.json offers it to Swarm."""
        return resource_of(self.id)

    @property
    def instance(self) -> bool:
        """Whether it is a MIG instance, a part of a card."""
        return self.id.upper().startswith("MIG-")

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.id if self.known else f"GPU {self.id}"


@dataclass(frozen=True, slots=True)
class Host:
    """One machine; `speed` is its link's in bits per second, `loc` its place in the inventory.

    `interface` is None where it is the network's.
    """

    name: str
    address: str
    ssh: str
    roles: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    interface: str | None
    speed: int
    loc: Loc


@dataclass(frozen=True, slots=True)
class Network:
    """What carries the gradients; `mtu` is the underlay's, in bytes."""

    driver: str
    interface: str | None
    subnet: str
    mtu: int
    infiniband: bool
    nccl: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """Where the jobs' images lie; `address` is `host:port`.

    `host` is the host that kit serves it on, from `image`; None where somebody else serves it.
    """

    address: str
    host: str | None
    image: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machines. `file` is the name that rendered headers give.

    `heartbeat` is the Swarm dispatcher's, in seconds.
    """

    file: str
    cluster: str
    engine: EngineName
    hosts: tuple[Host, ...]
    network: Network
    heartbeat: int
    registry: Registry | None


@dataclass(frozen=True, slots=True)
class JobHosts:
    """Which hosts a job wants: `names` (empty: all), GPUs on each (None: all), the fewest."""

    names: tuple[str, ...]
    gpus_per_host: int | None
    fewest: int | None


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder in the container; `kind` is `bind`, `volume` or `nfs`, `source` as it needs."""

    kind: str
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable whose value only `kit deploy` knows, from `file`, or from its own environment."""

    name: str
    file: str | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one container, sizes in bytes; -1 is unlimited, None leaves Docker's default."""

    shared_memory: int
    memory: int | None
    cpus: float | None
    memlock: int | None
    stack: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """What to run. Exactly one of `train` and `command` is set; `stop_grace` is in seconds.

    `exchange` comes with `train`. `step_seconds` is what a step was measured to compute for,
    `metrics_port` the port of the trainer's metrics. `user` is whose processes its containers run
    (None: the image's).
    """

    name: str
    file: str
    image: str
    train: Train | None
    command: tuple[str, ...]
    working_dir: str | None
    reference_batch: int | None
    batch_size: int | None
    parameters: int | None
    step_seconds: float | None
    exchange: Exchange | None
    checkpoint: Checkpoint
    hosts: JobHosts
    mounts: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[Secret, ...]
    nccl: tuple[tuple[str, str], ...]
    limits: Limits
    port: int | None
    metrics_port: int | None
    stop_grace: int
    user: str | None


@dataclass(frozen=True, slots=True)
class Server:
    """An inference service: it answers with the newest complete checkpoint of a job.

    `name` begins with SERVER_PREFIX. `checkpoint` is `newest`, `best` or the name of one;
    `transfer_port` is where the job's hosts offer theirs. `window` is in milliseconds, `timeout` in
    seconds, `body` (of a request) and `gpu_memory` (the least of a GPU) in bytes, `pixels` of an
    image. `token` is what clients must show, None where all may ask; `allowed_hosts` are the names
    that they may ask it by besides its hosts' own. `user` is whose process the containers run
    (None: nobody's).
    """

    name: str
    file: str
    image: str
    job: str
    checkpoint: str
    port: int
    transfer_port: int
    batch_size: int
    window: float
    queue: int
    timeout: int
    body: int
    pixels: int
    token: Secret | None
    allowed_hosts: tuple[str, ...]
    hosts: JobHosts
    gpu_memory: int | None
    environment: tuple[tuple[str, str], ...]
    memory: int | None
    cpus: float | None
    user: str | None

    @property
    def short_name(self) -> str:
        """Its name as its file has it."""
        return self.name.removeprefix(SERVER_PREFIX)


SERVER_PREFIX = "serve-"
"""How the names of servers begin, in commands and of their stacks; a job's never do."""
