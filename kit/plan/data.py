"""The data services of a cluster: the host that stores, the hosts that fetch, and the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.errors import INVENTORY, Fault
from kit.jobs import Job
from kit.model import DataService, DataSet, Host, Inventory, Lock
from kit.plan.images import pinned
from kit.plan.storage import volume_name

STORAGE = "storage"
"""The role of the host that stores the data sets."""
DEFAULTS = DataService(port=8090, peer_port=6881, cache=None, image=None)
"""The settings without a section `data` in the inventory; tests compare them with the schema's."""
Sizes = Mapping[tuple[str, int], int]
"""The bytes of the stored data sets, by name and version."""


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The data services.

    `storage` keeps the data sets, `agents` are the hosts with an agent, the storage host included.
    `cache` is the most bytes of a host's copies, or None. `volume` holds the data sets on each
    host, also on the storage host: store and cache have the same layout, so that every job mounts
    the same volume wherever it runs, and the storage host keeps one copy. `image` has the programs.
    """

    storage: Host
    agents: tuple[Host, ...]
    port: int
    peer_port: int
    cache: int | None
    volume: str
    image: str

    @property
    def peer_ports(self) -> tuple[int, int]:
        """The ports of an agent: for pieces, and for the manifests of what it holds."""
        return self.peer_port, self.peer_port + 1


@dataclass(frozen=True, slots=True)
class Fetch:
    """The first fetch of a job's data set by `hosts`, which do not store it.

    `bytes` and `seconds` are None if the size is unknown. `slowest` is the slowest link.
    """

    data: DataSet
    hosts: tuple[Host, ...]
    bytes: int | None
    seconds: float | None
    slowest: Host | None


@dataclass(frozen=True, slots=True)
class Stream:
    """A data set that `hosts`, which do not store it, read from the server while they train.

    `rate` is the most that each of them can read at the same time, in bytes per second; None if
    there is no such host.
    """

    data: DataSet
    hosts: tuple[Host, ...]
    bytes: int | None
    rate: float | None


def has_data(inventory: Inventory, jobs: Sequence[Job]) -> bool:
    """Return whether the cluster has data services: the inventory or a job has a section `data`."""
    return inventory.data is not None or any(job.data for job in jobs)


def storage_host(hosts: Sequence[Host]) -> Host | None:
    """Return the host that stores: the one with the role, or the only host."""
    named = [host for host in hosts if STORAGE in host.roles] or list(hosts)
    return named[0] if len(named) == 1 else None


def service_image(inventory: Inventory, jobs: Sequence[Job]) -> str | None:
    """Return the image with the trainer, or None if no job trains with it."""
    if inventory.data is not None and inventory.data.image is not None:
        return inventory.data.image
    return next((job.image for job in jobs if job.train is not None), None)


def data_plan(inventory: Inventory, jobs: Sequence[Job], lock: Lock | None) -> DataPlan | None:
    """Return the data services, or None without any; `data_faults` found no mistake."""
    storage, image = storage_host(inventory.hosts), service_image(inventory, jobs)
    if not has_data(inventory, jobs) or storage is None or image is None:
        return None
    service = inventory.data or DEFAULTS
    return DataPlan(
        storage=storage,
        agents=tuple(host for host in inventory.hosts if host.gpus or host is storage),
        port=service.port,
        peer_port=service.peer_port,
        cache=service.cache,
        volume=volume_name(inventory.cluster, "datasets"),
        image=pinned(image, lock),
    )


def data_faults(inventory: Inventory, jobs: Sequence[Job]) -> Iterator[Fault]:
    """Check that one host stores, and that an image has the programs."""
    if not has_data(inventory, jobs):
        return
    job = next((job for job in jobs if job.data), None)
    source = INVENTORY if inventory.data is not None or job is None else job.name
    key = "code" if source != INVENTORY and job and job.package else "data"
    if storage_host(inventory.hosts) is None:
        named = [host for host in inventory.hosts if STORAGE in host.roles]
        if named:
            what = f"{named[1].name} and {named[0].name} both store the data sets"
            place = (*named[1].loc, "roles")
            yield Fault(INVENTORY, place, what, f"leave the role {STORAGE} to one of them")
        else:
            first = inventory.hosts[0]
            roles = ", ".join((*first.roles, STORAGE))
            fix = f"give one host the role: `{first.name}: {{roles: [{roles}], …}}`"
            what = "no host stores the data sets" + (
                ", which bring code too" if key == "code" else ""
            )
            yield Fault(source, (key,), what, fix)
    if service_image(inventory, jobs) is None:
        what = "the data services run in the trainer's image, and no job with `train:` names it"
        fix = "write `data: {image: …}` in the inventory"
        yield Fault(source, (key,), what, fix)


def fetches(
    data: DataPlan, sets: Sequence[DataSet], hosts: Sequence[Host], sizes: Sizes
) -> list[Fetch]:
    """Return the first fetch of each data set of a job on `hosts`."""
    fetching = tuple(host for host in hosts if host.name != data.storage.name)
    links = (data.storage, *fetching)
    slowest = min(links, key=lambda host: host.speed) if fetching else None
    downloads = []
    for each in sets:
        size = size_of(each, sizes)
        seconds = None
        if size is not None:
            speeds = [host.speed for host in fetching]
            seconds = fetch_seconds(size, data.storage.speed, speeds)
        downloads.append(Fetch(each, fetching, size, seconds, slowest))
    return downloads


def stream_rates(
    data: DataPlan, sets: Sequence[DataSet], hosts: Sequence[Host], sizes: Sizes
) -> list[Stream]:
    """Return the read rates that the links allow: all hosts share the storage host's link."""
    reading = tuple(host for host in hosts if host.name != data.storage.name)
    rate = None
    if reading:
        rate = min(data.storage.speed / len(reading), *(host.speed for host in reading)) / 8
    return [Stream(each, reading, size_of(each, sizes), rate) for each in sets]


def stream_url(server: str, data: DataSet) -> str:
    """Return the address of a data set on the data server.

    `newest` leads to a version: a plan does not know which ones are stored.
    """
    return f"{server}/{data.name}/{data.version or 'newest'}/data"


def size_of(data: DataSet, sizes: Sizes) -> int | None:
    """Return the bytes of a data set, or None if it is unknown."""
    versions = [version for name, version in sizes if name == data.name]
    version = data.version or max(versions, default=0)
    return sizes.get((data.name, version))


def fetch_seconds(size: int, source: int, speeds: Sequence[int]) -> float:
    """Return the least seconds in which hosts with links of `speeds` bit/s fetch `size` bytes.

    The source sends each byte at least once, the slowest host receives all, and all together send
    what all receive: Kumar & Ross 2006, Peer-Assisted File Distribution: The Minimum Distribution
    Time (HOTWEB, doi 10.1109/HOTWEB.2006.355254). Links are as fast in both directions.
    """
    if not speeds:
        return 0.0
    bits = size * 8
    return max(bits / source, bits / min(speeds), len(speeds) * bits / (source + sum(speeds)))
