"""Several fast links that all hosts share, such as the two ports of a DGX Spark's cable. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.discover.facts import DiscoveredHost, HostFacts, InterfaceFacts
from kit.values import show_speed

USUAL_MTU = 1500
LARGE_MTU = 9000
"""The MTU of jumbo frames, which NVIDIA recommends for RoCE: 4 KiB of data in each packet."""


@dataclass(frozen=True, slots=True)
class Cable:
    """Networks of fast links that all hosts share, with the interfaces and devices in their order.

    `devices` are the RDMA devices of the interfaces; none if a host has no active one for each of
    them. The names are the same on all hosts. `mtu` and `speed` are the smallest among them.
    """

    networks: tuple[str, ...]
    interfaces: tuple[str, ...]
    devices: tuple[str, ...]
    mtu: int
    speed: int

    def section(self) -> list[str]:
        """Return the section `network` of a new inventory."""
        lines = ["network:", "  driver: host", f"  interface: [{', '.join(self.interfaces)}]"]
        lines.append(f"  speed: {show_speed(self.speed)}")
        if self.mtu != USUAL_MTU:
            lines.append(f"  mtu: {self.mtu}")
        if self.devices:
            hca = f"={','.join(self.devices)}"
            lines += ["  infiniband: true", f'  nccl: {{NCCL_IB_HCA: "{hca}"}}']
        return lines


def shared_networks(hosts: Sequence[HostFacts]) -> list[str]:
    """Return the IPv4 networks of second, fast links that all hosts share."""
    if len(hosts) < 2:
        return []
    networks = [
        {str(address.network) for each in facts.fast for address in each.ipv4} for facts in hosts
    ]
    reached = {
        str(address.network)
        for facts in hosts
        for each in facts.interfaces
        for address in each.ipv4
        if str(address.ip) == facts.reached
    }
    return sorted(set.intersection(*networks) - reached)


def shared_fast_network(hosts: Sequence[HostFacts]) -> str | None:
    """Return the IPv4 network of a second, fast link that all hosts share, or None."""
    return min(shared_networks(hosts), default=None)


def cable_of(hosts: Sequence[HostFacts]) -> Cable | None:
    """Return the fast links if all hosts share several, by interfaces of the same names."""
    networks = shared_networks(hosts)
    by_host = [[_in_network(facts, network) for network in networks] for facts in hosts]
    names = {tuple(link.name for link in links) for links in by_host}
    if len(networks) < 2 or len(names) != 1:
        return None
    interfaces = names.pop()
    if len(set(interfaces)) < len(interfaces):
        return None
    devices = {_devices(facts, interfaces) for facts in hosts}
    return Cable(
        networks=tuple(networks),
        interfaces=interfaces,
        devices=devices.pop() if len(devices) == 1 else (),
        mtu=min(link.mtu for links in by_host for link in links),
        speed=min(link.speed or 0 for links in by_host for link in links),
    )


def _in_network(facts: HostFacts, network: str) -> InterfaceFacts:
    return next(link for link in facts.fast if network in {str(one.network) for one in link.ipv4})


def _devices(facts: HostFacts, interfaces: Sequence[str]) -> tuple[str, ...]:
    """Return the RDMA devices of interfaces; none if one of them has no active device."""
    by_interface = {port.interface: port.device for port in facts.rdma if port.active}
    found = tuple(by_interface[name] for name in interfaces if name in by_interface)
    return found if len(found) == len(interfaces) else ()


def cable_notes(hosts: Sequence[DiscoveredHost]) -> Iterator[str]:
    """Yield notes on how the inventory uses all links, and on what the links lack."""
    cable = cable_of([host.facts for host in hosts])
    if cable is None:
        yield from (note for host in hosts for note in _one_network(host))
        return
    names = " and ".join(cable.interfaces)
    if any(host.known for host in hosts):
        keys = ", ".join(line.strip() for line in cable.section()[1:])
        yield (
            f"all hosts share {len(cable.networks)} fast links, {names}: NCCL uses all of them "
            f"with `network: {{{keys}}}`; `kit bench` measures each"
        )
    else:
        yield f"all hosts share {len(cable.networks)} fast links, {names}: NCCL uses all of them"
    if cable.mtu < LARGE_MTU:
        yield (
            f"the MTU of {names} is {cable.mtu}: {LARGE_MTU} on all hosts (ip link set NAME mtu "
            f"{LARGE_MTU}, or in netplan) and `network: {{mtu: {LARGE_MTU}}}` cost less time a byte"
        )
    if not cable.devices:
        yield (
            f"not every host has an active RDMA device for each of {names}: NCCL uses TCP there; "
            "look at `ibdev2netdev`"
        )


def _one_network(host: DiscoveredHost) -> Iterator[str]:
    """Yield notes on fast links of a host in the same network: packets leave by one of them."""
    by_network: dict[str, list[str]] = {}
    for link in host.facts.fast:
        for address in link.ipv4:
            by_network.setdefault(str(address.network), []).append(link.name)
    for network, names in by_network.items():
        if len(names) > 1:
            yield (
                f"{host.name}: {' and '.join(names)} are both in {network}: packets leave by one "
                "of them; give each port a network of its own on all hosts"
            )
