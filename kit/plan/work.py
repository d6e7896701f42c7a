"""What runs on which GPUs, as values: jobs, servers, and the plan of them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kit.model import Host, Job, Lock, Network, Registry, Server
from kit.plan.types import (
    Batch,
    ExchangePlan,
    MountPoint,
    Placement,
    Precision,
    Traffic,
    Volume,
)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job with all its numbers.

    `image` is pinned to the lock's digest. `nodes` are the fewest and the most hosts that it runs
    on. `memlock` and `stack_limit` are in bytes, -1 for unlimited. `shared_checkpoints`: one folder
    serves all hosts. `exchange` is None where nothing is exchanged between hosts, or the model's
    size is not known; `precision` where the job says it, or not all of its GPUs' models are known.
    `inventory_hash` tells versions of what the inventory says of the job's hosts apart, `job_hash`
    those of the job's own file, whatever their comments and their layout.
    """

    job: Job
    placements: tuple[Placement, ...]
    nodes: tuple[int, int]
    batch: Batch
    traffic: Traffic
    exchange: ExchangePlan | None
    precision: Precision | None
    mounts: tuple[MountPoint, ...]
    volumes: tuple[Volume, ...]
    shared_checkpoints: bool
    memlock: int | None
    stack_limit: int | None
    inventory_hash: str
    job_hash: str
    image: str

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that take part."""
        return tuple(placement.host for placement in self.placements)

    @property
    def world_size(self) -> int:
        """Processes on all hosts."""
        return sum(placement.processes for placement in self.placements)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server with all its numbers; without placements it is idle, for lack of a GPU.

    `image` is pinned to the lock's digest. `mount` is where the checkpoints of its `job` lie on
    that job's hosts. `everywhere`: its own hosts have them too. `travels`: some of its hosts read
    them from others. The hashes are as a job's.
    """

    server: Server
    placements: tuple[Placement, ...]
    job: JobPlan
    mount: MountPoint
    everywhere: bool
    travels: bool
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
        """Copies of the model on all hosts."""
        return sum(placement.processes for placement in self.placements)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs what. `notes` are judgements that a person should read.

    `heartbeat` is the Swarm dispatcher's, in seconds. `images` are the names of all images that
    hosts run, without the digests of the `lock`.
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

    @property
    def serving(self) -> tuple[ServerPlan, ...]:
        """The servers that have a GPU."""
        return tuple(server for server in self.servers if server.placements)

    @property
    def sources(self) -> tuple[str, ...]:
        """The files besides the inventory that say what runs."""
        jobs = (job.job.file for job in self.jobs)
        return (*jobs, *(server.server.file for server in self.serving))


def manager_of(hosts: Iterable[Host]) -> Host:
    """Return the first manager, or the first host where none has the role (one host)."""
    hosts = tuple(hosts)
    return next((host for host in hosts if "manager" in host.roles), hosts[0])
