"""A host that has answered, and its place in the inventory."""

from __future__ import annotations

from dataclasses import dataclass

from kit.discover.facts import HostFacts
from kit.model import Host


@dataclass(frozen=True, slots=True)
class Found:
    """A host that has answered: its name in the inventory, its login and its facts.

    `address` is the address for other hosts; `known` is its entry in the inventory, None for a new
    host.
    """

    name: str
    login: str
    address: str
    facts: HostFacts
    known: Host | None = None

    @property
    def speed(self) -> int | None:
        """The speed of the link at its address, None if the driver does not report it."""
        interface = self.facts.interface_of(self.address)
        return interface.speed if interface else None
