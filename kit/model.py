"""The inventory and the jobs as values. `kit.config` makes them, `kit.plan` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kit.errors import Loc
from kit.platforms import AMD64
from kit.retention import KeptLogs
from kit.sharing import EQUAL, Hours, Sharing

Tree = dict[str, str]
"""The rendered files: texts by path, relative to the tree."""

AUTO = "auto"
"""The launcher finds the interface: that of the route to the coordinator."""


@dataclass(frozen=True, slots=True)
class Locked:
    """An image in images.lock: its digest, `sha256:…`.

    `platforms` are those in its registry, such as `linux/arm64`; empty if unknown.
    """

    digest: str
    platforms: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the digest."""
        return self.digest


Lock = Mapping[str, Locked]
"""The locked images by their names in the user's files."""


class EngineName(StrEnum):
    """The targets that can run the plan."""

    LOCAL = "local"
    COMPOSE = "compose"
    SWARM = "swarm"
    KUBERNETES = "kubernetes"


class Use(StrEnum):
    """The use of a GPU."""

    TRAINING = "training"
    INFERENCE = "inference"
    SPARE = "spare"
    NONE = "none"

    @property
    def splits(self) -> bool:
        """Whether a split divides such GPUs between training and inference."""
        return self in {Use.TRAINING, Use.INFERENCE}


def resource_of(device: str) -> str:
    """Return a GPU's name in daemon.json for Swarm: its UUID, or `gpu0` for an index.

    Docker would parse a plain index as a count (moby's genericresource.ParseCmd).
    """
    return f"gpu{device}" if device.isdecimal() else device


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG instance.

    `id` is its UUID, or its index on the host if `known` is false. `memory` is in bytes.
    """

    id: str
    known: bool
    model: str | None
    memory: int | None
    use: Use

    @property
    def resource(self) -> str:
        """Its name in the host's daemon.json for Swarm."""
        return resource_of(self.id)

    @property
    def instance(self) -> bool:
        """Whether it is a MIG instance of a card."""
        return self.id.upper().startswith("MIG-")

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.id if self.known else f"GPU {self.id}"


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `speed` is its link's in bits per second, `loc` its place in the inventory.

    `interface` is None if the network's interface applies; several are separated by commas. `lend`
    are the hours in which jobs of the queue may use it (None: always). `architecture` is its
    processor's, by Docker's name.
    """

    name: str
    address: str
    ssh: str
    roles: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    interface: str | None
    speed: int
    loc: Loc
    lend: Hours | None = None
    architecture: str = AMD64


@dataclass(frozen=True, slots=True)
class Network:
    """The network between the hosts. `mtu` is the underlay's, in bytes; `encrypted` its overlay."""

    driver: str
    interface: str | None
    subnet: str
    mtu: int
    infiniband: bool
    encrypted: bool
    nccl: tuple[tuple[str, str], ...]


def interfaces_of(host: Host, network: Network) -> tuple[str, ...]:
    """Return the interfaces of a host for the training; none if the launcher finds its own."""
    named = host.interface or network.interface or AUTO
    return () if named == AUTO else tuple(named.split(","))


@dataclass(frozen=True, slots=True)
class Subject:
    """A user, a group or a service account of Kubernetes; `kind` is that of a RoleBinding."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The Kubernetes cluster, and where its objects are.

    `context` and `kubeconfig` are None for kubectl's defaults. `image_pull_secret` is
    the name of a Secret in the `namespace`. `storage_class` is None for the cluster's default,
    `storage_size` is in bytes, `storage_access` an access mode of claims. `deployers` may run kit.
    `pool`: hosts are any nodes, with GPUs of the `product` unless it is None. `queue` and
    `priority_class` are Kueue's, None without it. `job_kind` is the kind of object that trains:
    `Job`, `JobSet` or `TrainJob`. `device_class` is that of NVIDIA's DRA driver, None without it.
    `prometheus_operator`: the cluster's Prometheus Operator scrapes the workloads. `topology` is a
    label of nodes: its value is the same for nodes that are close to each other. `rdma` is the
    resource of a device plugin for InfiniBand and RoCE, None without it.
    """

    context: str | None
    kubeconfig: str | None
    namespace: str
    image_pull_secret: str | None
    storage_class: str | None
    storage_size: int
    storage_access: str
    deployers: tuple[Subject, ...] = ()
    pool: bool = False
    product: str | None = None
    queue: str | None = None
    priority_class: str | None = None
    job_kind: str = "Job"
    device_class: str | None = None
    prometheus_operator: bool = False
    topology: str | None = None
    rdma: str | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry of the jobs' images. `address` is `host:port`.

    kit runs it on `host` from `image`; `host` is None if kit does not run it.
    """

    address: str
    host: str | None
    image: str


@dataclass(frozen=True, slots=True)
class DataService:
    """The settings of the data services.

    The server and the agents of all hosts listen on `port` and `peer_port`. `cache` limits the
    bytes of a host's copies (None: no limit). `image` is the services' (None: a training job's).
    """

    port: int
    peer_port: int
    cache: int | None
    image: str | None


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set that a job needs. `version` is None for the newest.

    `stream`: hosts read it from the data server while they train, and keep no copy.
    """

    name: str
    version: int | None
    stream: bool = False

    @property
    def title(self) -> str:
        """Its name in messages and commands: `cifar10@1`, or `cifar10`."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    def document(self) -> dict[str, str | int | bool | None]:
        """Return it for JSON; `stream` is present only if it is set."""
        document: dict[str, str | int | bool | None] = {"name": self.name, "version": self.version}
        return document | ({"stream": True} if self.stream else {})


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Prometheus, Grafana and the exporters, by their images.

    `retention` is a time as Prometheus writes it. `host` runs Prometheus and Grafana, the latter
    at `port`; None leaves the choice to kit. `password` is that of Grafana's user admin.
    `alertmanager` is `host:port`. `logs` limits the container logs that each host keeps; None:
    only Docker keeps them, until a container is removed.
    """

    retention: str
    host: str | None
    port: int
    password: Secret
    alertmanager: str | None
    prometheus: str
    grafana: str
    node_exporter: str
    dcgm_exporter: str
    log_collector: str
    logs: KeptLogs | None

    @property
    def images(self) -> tuple[str, ...]:
        """The names of all images."""
        collector = () if self.logs is None else (self.log_collector,)
        exporters = (self.node_exporter, self.dcgm_exporter)
        return (self.prometheus, self.grafana, *exporters, *collector)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret variable. Its value comes from `file`, or from the environment of `kit deploy`."""

    name: str
    file: str | None


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of notifications of some kinds, by its URL or a secret that holds the URL.

    `key` signs what a webhook sends.
    """

    url: str | Secret
    on: tuple[str, ...]
    key: Secret | None

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that the sender reads."""
        return tuple(each for each in (self.url, self.key) if isinstance(each, Secret))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The hosts of a cluster. `file` is the name in the headers of rendered files.

    `heartbeat` belongs to the Swarm dispatcher and is in seconds. `data` is None if the file has no
    such section: the data services then run only if a job needs them. `notify` is for all jobs.
    `sharing` are the rules of the queue. `kubernetes` is None if the file has no such section.
    """

    file: str
    cluster: str
    engine: EngineName
    hosts: tuple[Host, ...]
    network: Network
    heartbeat: int
    registry: Registry | None
    data: DataService | None
    monitoring: Monitoring | None
    notify: tuple[Receiver, ...] = ()
    sharing: Sharing = EQUAL
    kubernetes: Kubernetes | None = None


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The hosts of a job: `names` (empty: all), GPUs on each (None: all), `fewest` hosts.

    `gpus` are the ids of selected GPUs by host; then `names` are its hosts.
    """

    names: tuple[str, ...]
    gpus_per_host: int | None
    fewest: int | None
    gpus: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount in the container. `kind` (`bind`, `volume`, `nfs`) gives the meaning of `source`."""

    kind: str
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one container, sizes in bytes; -1 is unlimited, None is Docker's default."""

    shared_memory: int
    memory: int | None
    cpus: float | None
    memlock: int | None
    stack: int | None
