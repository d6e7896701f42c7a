"""Checks of the network that need no traffic: addresses, interfaces, speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kit.discover.facts import InterfaceFacts
from kit.doctor import codes
from kit.doctor.facts import Report, Wanted, WantedHost
from kit.doctor.findings import Finding, note, ok, wrong
from kit.model import AUTO
from kit.values import show_speed


def check(report: Report, want: WantedHost, wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on the interface that the training uses."""
    facts, host = report.facts, want.host
    names = [each.name for each in facts.interfaces]
    address = host.address if host.address[:1].isdigit() or ":" in host.address else ""
    own = facts.interface_of(address) if address else None
    found: list[Finding] = []
    if address and own is None:
        said = f"no interface has the address {address} ({', '.join(names)})"
        run = f"correct `address` of {host.name} in the inventory, or ip addr add there"
        found.append(wrong(codes.INTERFACE, host.name, said, run))
    if not wanted.overlay and want.interface not in {None, AUTO} and want.interface not in names:
        said = f"there is no interface {want.interface} ({', '.join(names)})"
        run = "write `interface: auto`, or its name on that host, into the inventory"
        found.append(wrong(codes.INTERFACE, host.name, said, run))
    if own is not None:
        found += _link(report, want, own.name)
        if not wanted.overlay:
            found += _first(report.host, own, address)
        if own.mtu and own.mtu < wanted.mtu:
            said = f"{own.name} has an MTU of {own.mtu}, the inventory says {wanted.mtu}"
            run = f"ip link set {own.name} mtu {wanted.mtu} (as root), or network: {{mtu: …}}"
            found.append(wrong(codes.MTU, host.name, said, run))
    if not any(each.code is codes.INTERFACE for each in found):
        found.append(ok(codes.INTERFACE, host.name))
    yield from found


def _first(host: str, interface: InterfaceFacts, address: str) -> Iterator[Finding]:
    """Say that NCCL and gloo, which know interfaces alone, use another address of the interface."""
    own = [each.partition("/")[0] for each in interface.addresses]
    first = "127.0.0.1" if interface.name == "lo" else own[0]
    if first != address:
        said = f"NCCL and gloo use {first}, the first address of {interface.name}, not {address}"
        run = f"see that the other hosts reach {first}, or give {address} an interface of its own"
        yield note(codes.INTERFACE, host, said, run)


def _link(report: Report, want: WantedHost, name: str) -> Iterator[Finding]:
    interface = next(each for each in report.facts.interfaces if each.name == name)
    if not interface.up and interface.device:
        said = f"{name}, which has its address, is down"
        run = f"ip link set {name} up (as root); look at the cable"
        yield wrong(codes.INTERFACE, report.host, said, run)
    # A virtual interface reports any speed.
    elif interface.device and interface.speed and interface.speed < want.host.speed:
        planned = show_speed(want.host.speed)
        said = f"{name} runs at {show_speed(interface.speed)}, the inventory says {planned}"
        run = f"ethtool {name}; look at cable and switch, or correct `speed`"
        yield note(codes.INTERFACE, report.host, said, run)
