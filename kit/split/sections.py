"""The GPUs as listed in the inventory. An entry of a range of hosts is one GPU on each host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kit.errors import Loc
from kit.model import Gpu, Host, Inventory, Use

Key = tuple[str, str]
"""An entry of the inventory: the key of its hosts, and the GPU's id."""
Split = Mapping[Key, Use]
"""The new uses of GPUs."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a list of GPUs, at `position`. It is one GPU on each of `hosts`."""

    section: str
    hosts: tuple[str, ...]
    position: int
    gpu: Gpu

    @property
    def key(self) -> Key:
        """Its key in a split."""
        return self.section, self.gpu.id

    @property
    def name(self) -> str:
        """Its selector on the command line."""
        return f"{self.section}:{self.position}"

    @property
    def loc(self) -> Loc:
        """Its place in the inventory, or the nearest one in the file."""
        return ("hosts", self.section, "gpus", self.position)


@dataclass(frozen=True, slots=True)
class HostsSection:
    """One key of the inventory's `hosts`: a host or a range of hosts.

    The hosts of a range move together: a list for one of them would cut the range in three, and the
    next split would have to join it again.
    """

    name: str
    hosts: tuple[str, ...]
    slots: tuple[Slot, ...]


def section_of(host: Host) -> str:
    """Return the inventory's key of a host."""
    return str(host.loc[1])


def sections(inventory: Inventory) -> tuple[HostsSection, ...]:
    """Return the inventory's sections, in its order."""
    members: dict[str, list[Host]] = {}
    for host in inventory.hosts:
        members.setdefault(section_of(host), []).append(host)
    return tuple(_section(name, hosts) for name, hosts in members.items())


def _section(name: str, hosts: list[Host]) -> HostsSection:
    names = tuple(host.name for host in hosts)
    slots = (Slot(name, names, position, gpu) for position, gpu in enumerate(hosts[0].gpus))
    return HostsSection(name, names, tuple(slots))


def slots(inventory: Inventory) -> tuple[Slot, ...]:
    """Return all entries, in the inventory's order."""
    return tuple(slot for section in sections(inventory) for slot in section.slots)


def count_of(entries: Iterable[Slot]) -> int:
    """Return the number of GPUs; an entry has one on each of its hosts."""
    return sum(len(slot.hosts) for slot in entries)


def moved(inventory: Inventory, split: Split) -> Inventory:
    """Return the inventory after the split."""

    def _gpus(host: Host) -> tuple[Gpu, ...]:
        section = section_of(host)
        uses = [split.get((section, gpu.id), gpu.use) for gpu in host.gpus]
        return tuple(
            gpu if gpu.use is use else replace(gpu, use=use)
            for gpu, use in zip(host.gpus, uses, strict=True)
        )

    touched = {section for section, _ in split}
    hosts = (
        replace(host, gpus=_gpus(host)) if section_of(host) in touched else host
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))
