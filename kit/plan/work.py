"""What the engines bring onto hosts, as values: jobs, servers, and the plan of them all."""

from __future__ import annotations

from dataclasses import dataclass

from kit.model import SERVER_PREFIX, EngineName, Host, Job, Network, Secret, Server
from kit.plan.types import (
    Batch,
    ExchangePlan,
    MountPoint,
    Placement,
    Precision,
    Rendezvous,
    ServedRegistry,
    Service,
    Traffic,
    Volume,
)

STACK_PREFIX = "train-"
"""How the names of jobs' stacks and Compose projects begin."""


def stack_of(name: str) -> str:
    """Return the name of a job's or a server's stack, and of its Compose projects."""
    return name if name.startswith(SERVER_PREFIX) else f"{STACK_PREFIX}{name}"


def document_of(name: str) -> str:
    """Return the file of the tree that the containers of a job or a server read."""
    if name.startswith(SERVER_PREFIX):
        return f"serve/{name.removeprefix(SERVER_PREFIX)}.json"
    return f"jobs/{name}.json"


def work_of(stack: str) -> str | None:
    """Return the job or the server that a stack is of; None where it is of neither."""
    if stack.startswith(SERVER_PREFIX):
        return stack
    return stack.removeprefix(STACK_PREFIX) if stack.startswith(STACK_PREFIX) else None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job with all its numbers.

    `image` is pinned to the lock's digest. `variables` are the environment of every container of
    the job, `launcher` the path of launch.py in it; `nodes` are the fewest and the most hosts that
    it runs on. `memlock` and `stack_limit` are in bytes, -1 for unlimited. `shared_checkpoints`:
    one folder serves all hosts. `exchange` is None where nothing is exchanged between hosts, or the
    model's size is not known; `precision` where the job says it, or not all of its GPUs' models are
    known. `inventory_hash` and `job_hash` tell versions of what the two files say apart, whatever
    their comments and their layout.
    """

    job: Job
    placements: tuple[Placement, ...]
    services: tuple[Service, ...]
    rendezvous: Rendezvous
    nodes: tuple[int, int]
    batch: Batch
    traffic: Traffic
    exchange: ExchangePlan | None
    precision: Precision | None
    variables: tuple[tuple[str, str], ...]
    host_network: bool
    launcher: str
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
    def file(self) -> str:
        """The file that describes it."""
        return self.job.file

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """What only `kit deploy` knows."""
        return self.job.secrets

    @property
    def stack(self) -> str:
        """The name of its stack and of its Compose projects."""
        return stack_of(self.job.name)

    @property
    def needed(self) -> int:
        """The fewest hosts that it runs on."""
        return self.nodes[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The hosts that Compose has a project on."""
        return tuple(placement.host.name for placement in self.placements)

    @property
    def world_size(self) -> int:
        """Processes on all hosts."""
        return sum(placement.processes for placement in self.placements)

    def socket_variables(self, part: Placement | Service) -> list[str]:
        """Return the variables that name the hosts' interface, without those that the job sets."""
        if not (self.host_network and part.interface):
            return []
        own = dict(self.variables)
        return [name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if name not in own]


@dataclass(frozen=True, slots=True)
class Holder:
    """A service that offers a job's checkpoints, on `replicas` of the `hosts` that have them."""

    name: str
    hosts: tuple[Host, ...]
    replicas: int
    constraint: str

    @property
    def first(self) -> tuple[Host, ...]:
        """Those of the hosts that do it where nobody moves it about."""
        return self.hosts[: self.replicas]


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server with all its numbers; without placements it rests, for lack of a GPU.

    `image` is pinned to the lock's digest. `homes` are the hosts of its job. `mount` is where the
    job's checkpoints lie on a host, None where they can only be fetched; `holders` offer them, with
    one `alias` on the overlay; `sources` are the URLs to ask. The hashes are as a job's.
    """

    server: Server
    placements: tuple[Placement, ...]
    services: tuple[Service, ...]
    homes: tuple[str, ...]
    holders: tuple[Holder, ...]
    sources: tuple[str, ...]
    mount: MountPoint | None
    holder_mount: MountPoint
    volumes: tuple[Volume, ...]
    alias: str
    host_network: bool
    inventory_hash: str
    job_hash: str
    image: str

    @property
    def name(self) -> str:
        """The server's name, and its stack's."""
        return self.server.name

    @property
    def file(self) -> str:
        """The file that describes it."""
        return self.server.file

    @property
    def stack(self) -> str:
        """The name of its stack and of its Compose projects."""
        return self.server.name

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """What only `kit deploy` knows."""
        return (self.server.token,) if self.server.token else ()

    @property
    def needed(self) -> int:
        """The fewest hosts that it runs on: it answers with as many as there are."""
        return 1

    @property
    def parts(self) -> tuple[str, ...]:
        """The hosts that Compose has a project on: those that serve, and that offer checkpoints."""
        serving = [placement.host.name for placement in self.placements]
        offering = [each.name for holder in self.holders for each in holder.first]
        return tuple(dict.fromkeys([*serving, *offering]))

    def offers(self, host: str) -> bool:
        """Whether a host offers checkpoints, where each host has a file of its own."""
        return any(host == each.name for holder in self.holders for each in holder.first)

    @property
    def replicas(self) -> int:
        """Copies of the model on all hosts."""
        return sum(placement.processes for placement in self.placements)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where it answers."""
        port = self.server.port
        return tuple(f"http://{placement.host.address}:{port}" for placement in self.placements)


Work = JobPlan | ServerPlan
"""What an engine brings onto hosts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs what. `notes` are judgements that a person should read.

    `heartbeat` is the Swarm dispatcher's, in seconds. `images` are the names of all images that
    hosts run, `unlocked` those that an existing lock leaves out; `network_image` is of the service
    that holds the overlay (None: there is none).
    """

    file: str
    cluster: str
    engine: EngineName
    network: Network
    heartbeat: int
    hosts: tuple[Host, ...]
    jobs: tuple[JobPlan, ...]
    servers: tuple[ServerPlan, ...]
    notes: tuple[str, ...]
    images: tuple[str, ...]
    unlocked: tuple[str, ...]
    network_image: str | None
    registry: ServedRegistry | None

    @property
    def serving(self) -> tuple[ServerPlan, ...]:
        """The servers that have a GPU."""
        return tuple(server for server in self.servers if server.placements)

    @property
    def work(self) -> tuple[Work, ...]:
        """Jobs and servers, those that rest among them."""
        return (*self.jobs, *self.servers)

    @property
    def network_name(self) -> str:
        """The name of the overlay network that all jobs share."""
        return f"{self.cluster}-training"


def manager_of(hosts: tuple[Host, ...]) -> Host:
    """Return the first manager, or the first host where none has the role (one host)."""
    return next((host for host in hosts if "manager" in host.roles), hosts[0])
