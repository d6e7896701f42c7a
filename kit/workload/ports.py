"""The ports that kit's containers open on the hosts, and conflicts between two of them.

The plan finds the faults that every target has. Conflicts of ports depend on the target's network,
so that `lower` finds them; both are faults with a place in a file, in one list for the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kit.errors import INVENTORY, Fault, Loc
from kit.model import Host
from kit.workload.settings import Port
from kit.workload.types import Part, Role, Workload

LEAST_OF_USERS = 1024
"""Only root listens on a lower port of a host's own network (Linux, ip_unprivileged_port_start)."""
DATA_SERVICES = "the data services"
TITLES = {
    Role.DATA_SERVER: DATA_SERVICES,
    Role.DATA_AGENT: DATA_SERVICES,
    Role.GRAFANA: "Grafana",
    Role.NODE_EXPORTER: "the node exporter",
    Role.DCGM_EXPORTER: "the DCGM exporter",
}
"""Services in messages; the others are called by their role."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A container of a workload that listens on a port of a host, at one `address` of the host."""

    workload: Workload
    port: Port
    host: Host
    address: str


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the platform that listens on a port of a host, at one `address` of the host."""

    title: str
    port: Port
    host: Host
    address: str


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A TCP port of a host that a service of the platform, a job or a server listens on.

    `title` names the service for people. `workload` is the name of the job or server, or "".
    """

    host: str
    port: Port
    title: str
    workload: str = ""


def services(parts: Iterable[Part], address: str | None = None) -> Iterator[Service]:
    """Yield the ports on the hosts of parts that no job or server owns.

    They listen at `address`, by default at their host's address in the inventory.
    """
    for part in parts:
        title = TITLES.get(part.role, f"the {part.role}")
        for port in part.ports:
            for host in part.hosts:
                yield Service(title, port, host, host.address if address is None else address)


def open_ports(
    platform: Iterable[Service], listeners: Iterable[Listener]
) -> Mapping[str, tuple[OpenPort, ...]]:
    """Return the ports of each host, in their order, without repetition.

    Firewalls must let them pass, also those that Docker publishes: with `iptables: false`, or with
    Docker's proxy alone, the rules for incoming packets apply to them.
    """
    by_host: dict[str, dict[int, OpenPort]] = {}
    for each in platform:
        own = by_host.setdefault(each.host.name, {})
        own.setdefault(each.port.number, OpenPort(each.host.name, each.port, each.title))
    for one in listeners:
        own, name = by_host.setdefault(one.host.name, {}), one.workload.name
        open_port = OpenPort(one.host.name, one.port, one.workload.title, name)
        own.setdefault(one.port.number, open_port)
    return {host: tuple(own[number] for number in sorted(own)) for host, own in by_host.items()}


def port_faults(platform: Iterable[Service], listeners: Iterable[Listener]) -> list[Fault]:
    """Reject two listeners on the same port of the same host.

    Report one fault for each workload, even if a thousand hosts repeat it, and for each service.
    """
    faults: dict[str, Fault] = {}
    seen: dict[tuple[str, int], tuple[str, Loc, str]] = {}
    platform_ports: dict[tuple[str, int], Service] = {}
    for each in platform:
        before = platform_ports.setdefault((each.address, each.port.number), each)
        if before.port.loc != each.port.loc and each.title not in faults:
            faults[each.title] = _service_fault(before, each)
    for place, each in platform_ports.items():
        seen[place] = (INVENTORY, each.port.loc, each.title)
    for one in listeners:
        name, port = one.workload.name, one.port
        own = (name, port.loc, one.workload.title)
        source, other, who = first = seen.setdefault((one.address, port.number), own)
        if first != own and name not in faults:
            what = f"port {port.number} of {one.host.name} is already used by {who} ({{line}})"
            fix = f"write `{port.written(port.number % 65535 + 1)}`"
            faults[name] = Fault(name, port.loc, what, fix, other, source)
    return list(faults.values())


def _service_fault(one: Service, other: Service) -> Fault:
    """Return the fault of two services of the platform, at the key that sets a port."""
    if other.port.fixed:
        one, other = other, one
    what = f"port {other.port.number} of {other.host.name} is already used by {one.title}"
    number = other.port.number % 65535 + 1
    fix = "choose another port" if other.port.fixed else f"write `{other.port.written(number)}`"
    return Fault(INVENTORY, other.port.loc, what, fix)


def low_port_faults(workloads: Iterable[Workload]) -> list[Fault]:
    """Reject ports of the hosts' own network at which the user of a container may not listen.

    In a network of the container's own, Docker allows every user all ports.
    """
    return [
        Fault(
            workload.name,
            port.loc,
            f"only root may listen on port {port.number} of a host's own network",
            f"write `{port.written(port.number + 8000)}`, or `user: root`",
        )
        for workload in workloads
        if workload.host_network
        for part in workload.parts
        for port in part.ports
        if port.number < LEAST_OF_USERS and part.unprivileged and not part.capabilities
    ]
