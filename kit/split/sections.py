"""The GPUs as the inventory lists them: an entry of a range of hosts is one GPU of each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kit.errors import Loc
from kit.model import Gpu, Host, Inventory, Use

Key = tuple[str, str]
"""An entry of the inventory: the key of its hosts, and the GPU's id."""
Split = Mapping[Key, Use]
"""What GPUs are to be for."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a list of GPUs, at `position`; it stands for a GPU on each of `hosts`."""

    section: str
    hosts: tuple[str, ...]
    position: int
    gpu: Gpu

    @property
    def key(self) -> Key:
        """What a split calls it."""
        return self.section, self.gpu.id

    @property
    def name(self) -> str:
        """How it is written on the command line."""
        return f"{self.section}:{self.position}"

    @property
    def loc(self) -> Loc:
        """Its place in the inventory, or the nearest that is written down."""
        return ("hosts", self.section, "gpus", self.position)


@dataclass(frozen=True, slots=True)
class HostsSection:
    """One key of the inventory's `hosts`: a host, or a range of them."""

    name: str
    hosts: tuple[str, ...]
    slots: tuple[Slot, ...]


def section_of(host: Host) -> str:
    """Return the key that describes a host."""
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


def count_of(found: Iterable[Slot]) -> int:
    """Count GPUs: an entry has as many as hosts."""
    return sum(len(slot.hosts) for slot in found)


def moved(inventory: Inventory, split: Split) -> Inventory:
    """Return the inventory as it is after the split."""

    def _gpus(host: Host) -> tuple[Gpu, ...]:
        section = section_of(host)
        uses = [split.get((section, gpu.id), gpu.use) for gpu in host.gpus]
        return tuple(replace(gpu, use=use) for gpu, use in zip(host.gpus, uses, strict=True))

    touched = {section for section, _ in split}
    hosts = (
        replace(host, gpus=_gpus(host)) if section_of(host) in touched else host
        for host in inventory.hosts
    )
    return replace(inventory, hosts=tuple(hosts))
