"""The facts of `kit doctor` about a host, and the plan's expectations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kit.addresses import ssh_words
from kit.discover.facts import HostFacts
from kit.model import Host
from kit.workload.names import project_of
from kit.workload.ports import OpenPort


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """A card's state. Power in watts, `throttled` is NVML's mask of reasons; None is not known.

    `pending`, `failed`: a row of its memory waits for its replacement, or cannot be replaced.
    """

    uuid: str
    persistence: bool | None = None
    power_limit: float | None = None
    power_default: float | None = None
    ecc_errors: int | None = None
    throttled: int | None = None
    pending: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a GPU; `container` is the ID of its container or "".

    `memory` is in MiB, None if the driver does not report it.
    """

    gpu: str
    pid: int
    container: str
    memory: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Xid:
    """A driver's error in the kernel's log; `at` is in seconds after the start of the host."""

    number: int
    text: str
    at: float | None

    @property
    def place(self) -> str:
        """The GPU, as `Xid (PCI:0000:41:00`."""
        return self.text.partition(")")[0]


@dataclass(frozen=True, slots=True)
class Loss:
    """A line in the kernel's log on a lost GPU that is not an XID; `at` as for an Xid.

    `bus` is its PCI address without the function, "" if the line has none.
    """

    bus: str
    text: str
    at: float | None


@dataclass(frozen=True, slots=True)
class Sxid:
    """An NVSwitch's error in the kernel's log; `at` as for an Xid."""

    number: int
    fatal: bool
    text: str
    at: float | None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The state of a GPU's registration with the fabric manager, as nvidia-smi writes it."""

    uuid: str
    state: str
    status: str


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. `visible` is its NVIDIA_VISIBLE_DEVICES, None if it has none.

    `requested` are the GPUs of a device reservation (Compose). `group` is its stack or project.
    `ports` are those that it publishes, `health` the result of its health check, or "".
    """

    id: str
    name: str
    image: str
    runtime: str
    group: str
    requested: tuple[str, ...]
    visible: str | None
    host_network: bool = False
    ports: tuple[int, ...] = ()
    health: str = ""

    def gpus(self, default_runtime: str) -> tuple[str, ...]:
        """Return the devices that it sees: UUIDs, indexes, or `all`."""
        if self.requested:
            return self.requested
        runtime = self.runtime or default_runtime
        if runtime != "nvidia" or self.visible in {None, "", "void", "none"}:
            return ()
        return tuple((self.visible or "").split(","))


@dataclass(frozen=True, slots=True)
class HostImage:
    """An image that a host has; `architecture` is Docker's name, or ""."""

    id: str
    digests: tuple[str, ...] = ()
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """The file system of a path; sizes in bytes."""

    path: str
    size: int
    free: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the Swarm, as a manager sees it. `reachability` is "" for a worker."""

    id: str
    hostname: str
    state: str
    message: str
    address: str
    availability: str
    role: str
    reachability: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Swarm:
    """A host's own view of its Swarm. `nodes` are known to managers only.

    `fault` is an error of the engine or of `docker node ls`. `cluster` is the Swarm's ID, on
    managers only. The certificate's times are in seconds since the epoch, None if not readable.
    """

    state: str = ""
    fault: str = ""
    node: str = ""
    address: str = ""
    manager: bool = False
    cluster: str = ""
    managers: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    valid_from: float | None = None
    valid_until: float | None = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """The content of the doctor's own sections. Times in seconds.

    `xids` is None if the kernel's log cannot be read: then `losses` and `sxids` are not known.
    `fabrics` are the states of GPUs that report one; `fabric_manager`: its program runs.
    `toolkit` are settings of its file.
    `lookups` are the seconds of each name's look-up. `images` are those of jobs, by name.
    `networks` are the overlays that the host knows, `volumes` the names of its volumes.
    `listening` are the TCP ports on which something listens.
    """

    began: float = 0.0
    clock: float = 0.0
    overcommit: str = ""
    uptime: float = 0.0
    swap_used: int = 0
    cgroup_driver: str = ""
    health: tuple[GpuHealth, ...] = ()
    processes: tuple[Process, ...] = ()
    xids: tuple[Xid, ...] | None = None
    losses: tuple[Loss, ...] = ()
    sxids: tuple[Sxid, ...] = ()
    fabrics: tuple[Fabric, ...] = ()
    fabric_manager: bool = False
    toolkit: Mapping[str, str] = field(default_factory=dict)
    char_devices: int = 0
    rooms: tuple[Room, ...] = ()
    missing: tuple[str, ...] = ()
    lookups: Mapping[str, float] = field(default_factory=dict)
    images: Mapping[str, HostImage] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    networks: tuple[str, ...] = ()
    volumes: frozenset[str] = frozenset()
    listening: frozenset[int] = frozenset()
    swarm: Swarm = field(default_factory=Swarm)


@dataclass(frozen=True, slots=True)
class Report:
    """A host that answered.

    `login` is the time of the SSH login in seconds. `clock_error` is the part of the difference to
    the operator's clock that the time of the call cannot explain, in seconds, positive if the
    host's clock is ahead.
    """

    host: str
    facts: HostFacts
    vitals: Vitals
    login: float
    clock_error: float


@dataclass(frozen=True, slots=True)
class Use:
    """A workload's container on a host. Sizes in bytes.

    `gpus` are the IDs of the inventory; `pinned`: they are its NVIDIA_VISIBLE_DEVICES.
    `folders` are bind mounts, `mounts` are (source, target) of all data that it reads. `document`
    is the job file of a training with a data set, else "".
    """

    workload: str
    stack: str
    image: str
    gpus: tuple[str, ...]
    pinned: bool
    shared_memory: int
    memlock: int | None = None
    folders: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    document: str = ""
    checkpoint_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DataNeed:
    """The data sets of known size that a host has to keep, in the volume `volume`.

    `sets` are their titles and bytes, `limit` the most bytes of its cache, or None.
    """

    volume: str
    sets: tuple[tuple[str, int], ...] = ()
    limit: int | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of all."""
        return sum(size for _, size in self.sets)


@dataclass(frozen=True, slots=True)
class WantedHost:
    """The plan's expectations of one host. `labels` are those of its node.

    `ports` are those that services, jobs and servers open on it; `data` is None if it keeps no data
    set.
    """

    host: Host
    uses: tuple[Use, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    manager: bool = False
    interface: str | None = None
    ports: tuple[OpenPort, ...] = ()
    data: DataNeed | None = None

    @property
    def name(self) -> str:
        """The name in the inventory."""
        return self.host.name

    @property
    def ssh(self) -> str:
        """The command that logs in, for messages."""
        return ssh_words(self.host.ssh)

    @property
    def service_ports(self) -> tuple[int, ...]:
        """The ports of the platform's services, which other hosts use."""
        return tuple(each.port.number for each in self.ports if not each.workload)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The place where a job's ranks meet, on the hosts' network."""

    job: str
    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The plan's expectations of all hosts. `overlay` is the network's name or ""."""

    cluster: str
    tree: str
    swarm: bool
    mtu: int
    overlay: str
    hosts: tuple[WantedHost, ...]
    rendezvous: tuple[Rendezvous, ...] = ()

    @property
    def images(self) -> tuple[str, ...]:
        """The images that hosts run."""
        return tuple(dict.fromkeys(use.image for host in self.hosts for use in host.uses))

    @property
    def stacks(self) -> frozenset[str]:
        """The stacks of the workloads or, without a Swarm, their projects."""
        stacks = {use.stack for host in self.hosts for use in host.uses}
        return frozenset(stacks if self.swarm else (project_of(self.cluster, s) for s in stacks))

    def of(self, name: str) -> WantedHost:
        """Return the expectations of a host."""
        return next(host for host in self.hosts if host.name == name)
