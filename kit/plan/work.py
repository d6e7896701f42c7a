"""Jobs, servers and the whole plan as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kit.jobs import Job
from kit.model import Host, Kubernetes, Lock, Monitoring, Network, Receiver, Registry
from kit.plan.data import DataPlan
from kit.plan.queue import PoolPlan, counted
from kit.plan.types import (
    Batch,
    Division,
    ExchangePlan,
    MountPoint,
    Placement,
    Precision,
    Traffic,
    Volume,
)
from kit.servers import Server


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job with all its numbers.

    `image` is pinned to the lock's digest. `nodes` are the smallest and the largest number of its
    hosts that train together. `spares` take the place of lost ones. `memlock` and `stack_limit` are
    in bytes, -1 for unlimited. `shared_checkpoints`: all hosts share one folder. `exchange` is None
    if the hosts exchange nothing or the model's size is unknown. `division` is None if each rank
    has a whole model. `precision` is None if the job sets it or a GPU's model is unknown.
    `inventory_hash` is the version of the inventory's entries for the job's hosts. `job_hash` is
    the version of the job's file, independent of comments and layout. `receivers` are those of all
    jobs, then its own.
    """

    job: Job
    placements: tuple[Placement, ...]
    spares: tuple[Placement, ...]
    nodes: tuple[int, int]
    batch: Batch
    traffic: Traffic
    exchange: ExchangePlan | None
    division: Division | None
    precision: Precision | None
    mounts: tuple[MountPoint, ...]
    volumes: tuple[Volume, ...]
    shared_checkpoints: bool
    memlock: int | None
    stack_limit: int | None
    inventory_hash: str
    job_hash: str
    image: str
    receivers: tuple[Receiver, ...]

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of the job, the last of them the spares."""
        return tuple(placement.host for placement in self.containers)

    @property
    def meets(self) -> bool:
        """Whether it has a coordinator; a session has one only to notify people of its end."""
        return self.job.session is None or bool(self.receivers)

    @property
    def containers(self) -> tuple[Placement, ...]:
        """The hosts on which a container of the job runs: those that train, and the spares."""
        return (*self.placements, *self.spares)

    @property
    def counted(self) -> Sequence[Placement]:
        """The hosts that train together; of a job of the queue, the most that it may have."""
        return counted(self.job.queue, self.placements)

    @property
    def world_size(self) -> int:
        """The number of processes that train together."""
        return sum(placement.processes for placement in self.counted)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that the built-in server answers with.

    `mount` is their mount on the hosts of the `job`. `everywhere`: all of the server's hosts belong
    to the job too. `travels`: some of its hosts fetch checkpoints from others.
    """

    job: JobPlan
    mount: MountPoint
    everywhere: bool
    travels: bool


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server with all its numbers. It is idle if it has no placements.

    `able` are the hosts that may serve, after a split if not now. `image` is pinned to the lock's
    digest. `checkpoints` is None for the user's own server, whose `mounts` are its own. The hashes
    are defined as for a job.
    """

    server: Server
    placements: tuple[Placement, ...]
    able: tuple[Host, ...]
    checkpoints: Checkpoints | None
    mounts: tuple[MountPoint, ...]
    volumes: tuple[Volume, ...]
    inventory_hash: str
    job_hash: str
    image: str

    @property
    def name(self) -> str:
        """The server's name."""
        return self.server.name

    @property
    def replicas(self) -> int:
        """The number of copies of the model, or of a custom server, on all hosts."""
        return sum(placement.processes for placement in self.placements)


@dataclass(frozen=True, slots=True)
class Plan:
    """The allocation of all GPUs. `notes` are hints for the user.

    `heartbeat` belongs to the Swarm dispatcher and is in seconds. `images` are the names of all
    images that hosts run, without the digests of the `lock`. `data` is None if no job needs the
    data services and the inventory does not ask for them. `pool` are the GPUs of the queue.
    `ipv6`: a host has an IPv6 address. `kubernetes` are the settings of the Kubernetes cluster, if
    the inventory has them.
    """

    file: str
    cluster: str
    network: Network
    registry: Registry | None
    heartbeat: int
    hosts: tuple[Host, ...]
    jobs: tuple[JobPlan, ...]
    servers: tuple[ServerPlan, ...]
    notes: tuple[str, ...]
    images: tuple[str, ...]
    lock: Lock | None
    data: DataPlan | None
    pool: PoolPlan
    monitoring: Monitoring | None
    ipv6: bool
    kubernetes: Kubernetes | None

    @property
    def shared(self) -> bool:
        """Whether a queue divides the pool: it has jobs, or hosts that are lent."""
        return any(job.job.queue for job in self.jobs) or any(host.lend for host in self.hosts)

    @property
    def serving(self) -> tuple[ServerPlan, ...]:
        """The servers that have a GPU."""
        return tuple(server for server in self.servers if server.placements)

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that define the workloads, without the inventory."""
        jobs = (job.job.file for job in self.jobs)
        return (*jobs, *(server.server.file for server in self.serving))


def managers_of(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts that become managers: an odd number of those with the role.

    An even number tolerates no more losses than one less (Raft needs a majority).
    """
    hosts = tuple(hosts)
    named = tuple(host for host in hosts if "manager" in host.roles)
    if not named:
        return (manager_of(hosts),)
    return named if len(named) % 2 else named[:-1]


def manager_of(hosts: Iterable[Host]) -> Host:
    """Return the first manager, or the first host if no host has the role (a single host)."""
    hosts = tuple(hosts)
    return next((host for host in hosts if "manager" in host.roles), hosts[0])
