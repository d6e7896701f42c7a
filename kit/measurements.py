"""The measurements of `kit bench`: values, and their JSON file beside the inventory.

Speeds of links are in bits per second of payload, of disks and memory in bytes per second; times
are in seconds. `kit plan` reads them. Rendered files do not depend on them: they are reviewed, and
must be the same on a machine without this file and after each `kit bench`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb

FILE = "measurements.json"
"""The file's name."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link between two hosts. `forward` is the speed from `one` to `other`."""

    one: str
    other: str
    forward: float
    backward: float
    round_trip: float

    @property
    def speed(self) -> float:
        """The speed of the slower direction."""
        return min(self.forward, self.backward)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One all-reduce of `bytes` among hosts, with one process on each, by `gloo` or `nccl`."""

    hosts: tuple[str, ...]
    library: str
    bytes: int
    seconds: float

    @property
    def speed(self) -> float:
        """The bits per second on each link of a ring all-reduce that takes the same time.

        Each of n members of a ring sends 2(n-1)/n of the bytes (Patarasuk & Yuan 2009, doi
        10.1016/j.jpdc.2008.09.002). nccl-tests calls this the bus bandwidth.
        """
        members = len(self.hosts)
        return 2 * (members - 1) / members * self.bytes * 8 / self.seconds


@dataclass(frozen=True, slots=True)
class GpuRates:
    """A GPU. `operations` are half-precision operations per second in matrix products."""

    uuid: str
    model: str
    operations: float
    memory: float


@dataclass(frozen=True, slots=True)
class HostRates:
    """One host, with its address at the time of the measurement.

    `disk_of` is `data` (the data folder) or `container`. `cpu_steps` are training steps per second
    of a small network on one core, measured if the host has no GPU.
    """

    name: str
    address: str
    disk_read: float | None = None
    disk_write: float | None = None
    disk_of: str = ""
    cpu_steps: float | None = None
    gpus: tuple[GpuRates, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of a step of a job on one GPU (`gpu` is its model, or `cpu`), with its data."""

    job: str
    host: str
    gpu: str
    seconds: float
    batch_size: int
    parameters: int
    model: str
    dataset: str


@dataclass(frozen=True, slots=True)
class Measurements:
    """All measurements of a cluster. `measured` is the time of the last one, in UTC."""

    measured: str = ""
    hosts: tuple[HostRates, ...] = ()
    links: tuple[Link, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    steps: tuple[StepTime, ...] = ()

    def of_hosts(self, addresses: dict[str, str]) -> Measurements:
        """Return the measurements of the hosts whose address has not changed since."""
        unchanged = {each.name for each in self.hosts if addresses.get(each.name) == each.address}
        return Measurements(
            self.measured,
            tuple(each for each in self.hosts if each.name in unchanged),
            tuple(each for each in self.links if {each.one, each.other} <= unchanged),
            tuple(each for each in self.reductions if set(each.hosts) <= unchanged),
            tuple(each for each in self.steps if each.host in addresses),
        )

    def updated(self, new: Measurements) -> Measurements:
        """Return these; `new` ones replace older ones of the same hosts or job."""
        hosts = {each.name for each in new.hosts}
        jobs = {each.job for each in new.steps}
        addresses = {each.name: each.address for each in (*self.hosts, *new.hosts)}
        kept = self.of_hosts(addresses)
        return Measurements(
            new.measured,
            (*(each for each in kept.hosts if each.name not in hosts), *new.hosts),
            (*(each for each in kept.links if not {each.one, each.other} <= hosts), *new.links),
            (
                *(each for each in kept.reductions if not set(each.hosts) <= hosts),
                *new.reductions,
            ),
            (*(each for each in self.steps if each.job not in jobs), *new.steps),
        )

    def link_speeds(self) -> dict[str, float]:
        """Return the median link speed of each host with measured links."""
        speeds: dict[str, list[float]] = {}
        for link in self.links:
            for name in (link.one, link.other):
                speeds.setdefault(name, []).append(link.speed)
        return {
            name: sorted(its_speeds)[len(its_speeds) // 2] for name, its_speeds in speeds.items()
        }

    def reduction_speed(self, hosts: Collection[str]) -> float | None:
        """Return the speed of an all-reduce among these hosts; None if it was not measured.

        The measurement is that of exactly these hosts, of the smallest larger group, or of the
        slowest of their pairs.
        """
        wanted = set(hosts)
        supersets = [each for each in self.reductions if wanted <= set(each.hosts)]
        if supersets:
            nearest = min(supersets, key=lambda each: len(each.hosts))
            if len(nearest.hosts) == len(wanted) or len(wanted) > 2:
                return nearest.speed
        pairs = [
            each.speed
            for each in self.reductions
            if len(each.hosts) == 2 and set(each.hosts) <= wanted
        ]
        return min(pairs) if pairs and len(pairs) == comb(len(wanted), 2) else None


def to_text(measurements: Measurements) -> str:
    """Return the file's text: one measurement on each line, so that diffs are small."""
    lists: dict[str, Sequence[object]] = {
        "hosts": measurements.hosts,
        "links": measurements.links,
        "reductions": measurements.reductions,
        "steps": measurements.steps,
    }
    parts = [f'  "measured": {json.dumps(measurements.measured)}']
    for name, items in lists.items():
        rows = [f"    {_row(item)}" for item in items]
        parts.append(f'  "{name}": ' + ("[\n" + ",\n".join(rows) + "\n  ]" if rows else "[]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _row(item: object) -> str:
    assert dataclasses.is_dataclass(item)
    assert not isinstance(item, type)
    return json.dumps(_short(dataclasses.asdict(item)), ensure_ascii=False)


def _short(value: object) -> object:
    """Round to four digits; no measurement has more."""
    if isinstance(value, float):
        rounded = float(f"{value:.4g}")
        return int(rounded) if rounded >= 10**4 else rounded
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return value
