"""Parts as values: containers with their hosts, GPUs, mounts and ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kit.addresses import endpoint
from kit.jobs import Package
from kit.model import DataSet, Host, Limits, Secret
from kit.plan.types import MountPoint, Placement, Precision, Volume
from kit.queue.words import labels_of
from kit.sharing import Queued
from kit.workload.settings import Config, Environment, HealthCheck, Net, Port, Restart, Update
from trainer.contract.bearer import KEY


class Kind(StrEnum):
    """The kind of a workload."""

    JOB = "job"
    SERVER = "server"


class Role(StrEnum):
    """The task of a container. The value is the service's name in a Compose file."""

    TRAIN = "train"
    RENDEZVOUS = "rendezvous"
    SERVE = "serve"
    CHECKPOINTS = "checkpoints"
    PROXY = "proxy"
    NETWORK = "network"
    REGISTRY = "registry"
    DATA_SERVER = "data-server"
    DATA_AGENT = "data-agent"
    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"
    NODE_EXPORTER = "node-exporter"
    DCGM_EXPORTER = "dcgm-exporter"
    LOG_COLLECTOR = "log-collector"

    @property
    def works(self) -> bool:
        """Return whether it trains or answers requests; the other roles assist these."""
        return self in {Role.TRAIN, Role.SERVE}

    @classmethod
    def of(cls, name: str) -> Role | None:
        """Return the role of a part by its name, such as `train` or `train-on-pc1`."""
        return next((role for role in cls if f"{name}-".startswith(f"{role}-")), None)


@dataclass(frozen=True, slots=True)
class Part:
    """Equal containers: one on each of the first `replicas` of `hosts`, unless a scheduler chooses.

    `name` is unique within a workload. `placements` are the hosts with the GPUs of the containers;
    they are empty if the containers need no GPU. `launch` starts a container, `arguments` follow.
    `grace` is the time in seconds between SIGTERM and SIGKILL; None is Docker's default. `user` ""
    is the image's user. `unprivileged`: no capabilities except `capabilities`, and no way to gain
    more. `read_only`: only mounts and /tmp are writable. `keyed`: it has the cluster's key.
    `everywhere`: one container on each host with the right label, also on hosts added later.
    `waits`: the queue decides when they run.
    `open_files`: it may have 65,536 open files. `runs_tmp`: it builds programs in /tmp and runs
    them. `own_address`: its ports are open only at its host's address in the inventory, where a
    target publishes them. `all_gpus`: it sees all GPUs of its host, and reserves none.
    `host_processes`: it sees the processes of its host, where the target can. `about` and `why` are
    comments of the rendered file: above the service, and above the keys that need a reason.
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
    capabilities: tuple[str, ...] = ()
    read_only: bool = False
    keyed: bool = False
    network: Net = Net.CONTAINERS
    restart: Restart = field(default_factory=Restart)
    update: Update = field(default_factory=Update)
    everywhere: bool = False
    waits: bool = False
    open_files: bool = False
    runs_tmp: bool = False
    all_gpus: bool = False
    host_processes: bool = False
    own_address: bool = False
    stop_signal: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    about: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The names of its files in /run/secrets."""
        return (*(each.name for each in self.secrets), *((KEY,) if self.keyed else ()))

    @property
    def processes(self) -> int:
        """Processes in each container: one for each of its GPUs, or one for all."""
        return self.placements[0].processes

    @property
    def gpus(self) -> int:
        """GPUs of each container."""
        return len(self.placements[0].gpus)

    @property
    def whole(self) -> bool:
        """Whether each container gets all the GPUs of its host."""
        return self.placements[0].whole

    @property
    def first_hosts(self) -> tuple[Host, ...]:
        """The hosts that run it if no scheduler places it."""
        return self.hosts[: self.replicas]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The rendezvous: the host and the endpoint at which the agents of a job meet."""

    host: Host
    address: str
    port: int

    @property
    def endpoint(self) -> str:
        """`address:port`."""
        return endpoint(self.address, self.port)


@dataclass(frozen=True, slots=True)
class Store:
    """The place of a job's checkpoints.

    `volume` is a volume that kit created and may delete, or "" for storage of the user. `place`
    describes it for messages.
    """

    volume: str
    place: str


@dataclass(frozen=True, slots=True)
class Document:
    """The document that a workload's containers read, a file of the tree."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A job or a server as its parts.

    A server without a GPU is idle and has no parts. If this were an error, the first and the last
    split would be impossible.

    `stack` names its stack and its Compose projects. `file` defines it. `needed` is the smallest
    number of hosts. `rendezvous` and `store` are set for jobs. `reads` is the job that wrote a
    server's checkpoints, `sources` are the URLs of its checkpoints, `urls` are the server's own.
    `data` are the data sets of a job, `code` its Python files, which a server of it gets too,
    `package` is the folder with its code.
    `files` are other files that its containers read. People work in a `session`. With
    `queue`, it has a part for each host that it may use, and the queue decides which of them run,
    with `each` GPUs or all of a host. It `roams` if all hosts see its checkpoints.
    The user's own server has no document. It must answer the path `health` at its `urls`, at the
    latest `start_timeout` seconds after its start. A server can work while it answers `ready`.
    The hashes are the versions of the inventory's entries and of the file.
    """

    kind: Kind
    name: str
    stack: str
    file: str
    image: str
    document: Document | None
    parts: tuple[Part, ...]
    volumes: tuple[Volume, ...]
    secrets: tuple[Secret, ...]
    needed: int
    host_network: bool
    summary: str
    inventory_hash: str
    job_hash: str
    rendezvous: Rendezvous | None = None
    store: Store | None = None
    precision: Precision | None = None
    reads: str = ""
    urls: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    data: tuple[DataSet, ...] = ()
    code: tuple[Document, ...] = ()
    package: Package | None = None
    files: tuple[Document, ...] = ()
    health: str = ""
    ready: str = ""
    start_timeout: int = 600
    session: bool = False
    queue: Queued | None = None
    each: int | None = None
    roams: bool = False

    @property
    def queue_labels(self) -> tuple[tuple[str, str], ...]:
        """The labels with the request of a job to the queue; none without a queue."""
        return labels_of(self.queue, self.each, roams=self.roams) if self.queue else ()

    @property
    def proxied(self) -> bool:
        """Whether the last of a server's `urls` is that of a proxy for all hosts."""
        return any(part.role is Role.PROXY for part in self.parts)

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"job {self.name}" if self.kind is Kind.JOB else self.name

    @property
    def begins(self) -> bool:
        """Whether a deploy starts it: it is neither idle nor for the queue."""
        return bool(self.parts) and not self.queue

    @property
    def keyed(self) -> bool:
        """Whether a part has the cluster's key."""
        return any(part.keyed for part in self.parts)

    @property
    def coordinated(self) -> bool:
        """Whether a coordinator decides which hosts train together, in place of torchrun."""
        return any(part.arguments == ("coordinator",) for part in self.parts)

    @property
    def working(self) -> tuple[Part, ...]:
        """The parts that train or answer requests."""
        return tuple(part for part in self.parts if part.role.works)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The hosts that train, stand by or answer requests, with GPUs, in the order of ranks."""
        placements = [placement for part in self.working for placement in part.placements]
        return tuple(sorted(placements, key=lambda placement: placement.first_rank))

    @property
    def members(self) -> tuple[Placement, ...]:
        """The placements without the spares."""
        return tuple(each for each in self.placements if not each.spare)

    @property
    def processes(self) -> int:
        """Ranks of a job, or copies of a server's model, on all hosts."""
        return sum(placement.processes for placement in self.members)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that run a part, if each host has its own files."""
        names = [placement.host.name for placement in self.placements]
        names += [host.name for part in self.parts if part.hosts for host in part.first_hosts]
        return tuple(dict.fromkeys(names))
