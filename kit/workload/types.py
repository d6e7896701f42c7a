"""Parts as values: what runs, on which hosts and GPUs, with what around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from kit.errors import Loc
from kit.model import Host, Limits, Secret
from kit.plan.types import MountPoint, Placement, Precision, Volume
from kit.values import endpoint


class Kind(StrEnum):
    """What a workload is described as."""

    JOB = "job"
    SERVER = "server"


class Role(StrEnum):
    """What a container does; its value is the service's name in a Compose file."""

    TRAIN = "train"
    RENDEZVOUS = "rendezvous"
    SERVE = "serve"
    CHECKPOINTS = "checkpoints"
    REGISTRY = "registry"

    @property
    def works(self) -> bool:
        """Whether it trains or answers, and is no helper of what does."""
        return self in {Role.TRAIN, Role.SERVE}


class Word(str):
    """A value of kit's own that YAML reads as text without quotes."""

    __slots__ = ()


class Symbol(Enum):
    """A value that each target writes in its own way."""

    HOST = "the name of the host that the container runs on"
    GPUS = "the GPUs that the container is given"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment.

    `why` is for the reader of the file. `own`: other groups of hosts may have another value.
    """

    name: str
    value: str | Symbol
    why: str = ""
    own: bool = False


Environment = tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A command that fails when the container cannot do its work; times are in seconds."""

    command: tuple[str, ...]
    interval: int = 30
    timeout: int = 20
    retries: int = 3
    start_period: int = 120
    start_interval: int = 2


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a host's network that a container listens on, there at `inside`.

    `loc` is its place in the file that describes it. `public`: clients outside of the containers'
    own network reach it.
    """

    number: int
    loc: Loc
    public: bool
    inside: int | None = None

    def written(self, number: object = "…") -> str:
        """Write it as it stands in the file, with another number."""
        section = str(self.loc[0])
        return f"{section}: {{port: {number}}}" if self.loc[1:] else f"{section}: {number}"


@dataclass(frozen=True, slots=True)
class Config:
    """A file of the tree that a container gets at `target`."""

    key: str
    file: str
    target: str


@dataclass(frozen=True, slots=True)
class Part:
    """Equal containers: one on each of the first `replicas` of `hosts`, unless a scheduler chooses.

    `name` is unique within a workload. `placements` are the hosts with the GPUs that the containers
    get; none where they need no GPU. `launch` is how a container is started, `arguments` what
    follows. `grace` is in seconds, from the signal to end until the kill; None is Docker's own.
    `user` is the image's where it is "". `unprivileged`: without capabilities, and without a way to
    more. `read_only`: only mounts and /tmp can be written to.
    """

    role: Role
    name: str
    hosts: tuple[Host, ...]
    placements: tuple[Placement, ...]
    replicas: int
    image: str
    launch: tuple[str, ...]
    environment: Environment
    arguments: tuple[str, ...] = ()
    working_dir: str | None = None
    mounts: tuple[MountPoint, ...] = ()
    ports: tuple[Port, ...] = ()
    configs: tuple[Config, ...] = ()
    secrets: tuple[Secret, ...] = ()
    health: HealthCheck | None = None
    grace: int | None = None
    limits: Limits | None = None
    infiniband: bool = False
    user: str = ""
    unprivileged: bool = False
    read_only: bool = False

    @property
    def processes(self) -> int:
        """Processes in each container: one for each of its GPUs."""
        return self.placements[0].processes

    @property
    def whole(self) -> bool:
        """Whether each container gets all the GPUs of its host."""
        return self.placements[0].whole

    @property
    def first_hosts(self) -> tuple[Host, ...]:
        """The hosts that run it when no scheduler places it."""
        return self.hosts[: self.replicas]


@dataclass(frozen=True, slots=True)
class Meeting:
    """The TCPStore that torchrun's agents meet at: the host it runs on, and its endpoint."""

    host: Host
    address: str
    port: int

    @property
    def endpoint(self) -> str:
        """`address:port`."""
        return endpoint(self.address, self.port)


@dataclass(frozen=True, slots=True)
class Store:
    """Where a job keeps its checkpoints.

    `volume` is the volume that kit made for them and may delete; "" where they lie in something
    that the user named, `place` in words.
    """

    volume: str
    place: str


@dataclass(frozen=True, slots=True)
class Document:
    """The file of the tree that the containers of a workload read."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A job or a server as its parts; a server without a GPU is idle, and has none.

    `stack` is the name of its stack and of its Compose projects, `file` describes it. `needed` is
    the fewest hosts that it runs on. `meeting` and `store` are of jobs; `reads` is the job whose
    checkpoints a server answers with, `sources` the URLs that it asks for them, `urls` where it
    answers. The hashes tell versions of what inventory and file say apart.
    """

    kind: Kind
    name: str
    stack: str
    file: str
    image: str
    document: Document
    parts: tuple[Part, ...]
    volumes: tuple[Volume, ...]
    secrets: tuple[Secret, ...]
    needed: int
    host_network: bool
    summary: str
    inventory_hash: str
    job_hash: str
    meeting: Meeting | None = None
    store: Store | None = None
    precision: Precision | None = None
    reads: str = ""
    urls: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"job {self.name}" if self.kind is Kind.JOB else self.name

    @property
    def working(self) -> tuple[Part, ...]:
        """The parts that train or answer."""
        return tuple(part for part in self.parts if part.role.works)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The hosts that train or answer with their GPUs, in the order of ranks."""
        found = [placement for part in self.working for placement in part.placements]
        return tuple(sorted(found, key=lambda placement: placement.first_rank))

    @property
    def processes(self) -> int:
        """Ranks of a job, or copies of a server's model, on all hosts."""
        return sum(placement.processes for placement in self.placements)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts with a part in it, where each has files of its own."""
        names = [placement.host.name for placement in self.placements]
        names += [host.name for part in self.parts if part.hosts for host in part.first_hosts]
        return tuple(dict.fromkeys(names))
