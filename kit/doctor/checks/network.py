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
    findings: list[Finding] = []
    if address and own is None:
        evidence = f"no interface has the address {address} ({', '.join(names)})"
        run = f"correct `address` of {host.name} in the inventory, or ip addr add there"
        findings.append(wrong(codes.INTERFACE, host.name, evidence, run))
    planned = (want.interface or AUTO).split(",") if not wanted.overlay else []
    for name in planned:
        if name not in {AUTO, *names}:
            evidence = f"there is no interface {name} ({', '.join(names)})"
            run = "write `interface: auto`, or its name on that host, into the inventory"
            findings.append(wrong(codes.INTERFACE, host.name, evidence, run))
    for other in facts.interfaces:
        if len(planned) > 1 and other.name in planned and other is not own:
            findings += _other_port(report.host, other, wanted)
    if own is not None:
        findings += _link(report, want, own.name)
        if not wanted.overlay:
            findings += _first(report.host, own, address)
        if own.mtu and own.mtu < wanted.mtu:
            evidence = f"{own.name} has an MTU of {own.mtu}, the inventory says {wanted.mtu}"
            run = f"ip link set {own.name} mtu {wanted.mtu} (as root), or network: {{mtu: …}}"
            findings.append(wrong(codes.MTU, host.name, evidence, run))
    if not any(each.code is codes.INTERFACE for each in findings):
        findings.append(ok(codes.INTERFACE, host.name))
    yield from findings


def _other_port(host: str, port: InterfaceFacts, wanted: Wanted) -> Iterator[Finding]:
    """Yield faults that prevent NCCL from using one of several planned interfaces."""
    if not port.up:
        evidence, run = f"{port.name} is down", f"ip link set {port.name} up (as root)"
        yield wrong(codes.INTERFACE, host, evidence, f"{run}; look at the cable")
    elif not port.addresses:
        run = f"ip addr add ADDRESS/24 dev {port.name} (as root), in a network of its own"
        yield wrong(codes.INTERFACE, host, f"{port.name} has no address", run)
    elif port.mtu < wanted.mtu:
        evidence = f"{port.name} has an MTU of {port.mtu}, the inventory says {wanted.mtu}"
        run = f"ip link set {port.name} mtu {wanted.mtu} (as root), or network: {{mtu: …}}"
        yield wrong(codes.MTU, host, evidence, run)


def _first(host: str, interface: InterfaceFacts, address: str) -> Iterator[Finding]:
    """Yield a note if NCCL and gloo, which know only interfaces, use another of its addresses."""
    own = [each.partition("/")[0] for each in interface.addresses]
    first = "127.0.0.1" if interface.name == "lo" else own[0]
    if first != address:
        evidence = (
            f"NCCL and gloo use {first}, the first address of {interface.name}, not {address}"
        )
        run = f"see that the other hosts reach {first}, or give {address} an interface of its own"
        yield note(codes.INTERFACE, host, evidence, run)


def _link(report: Report, want: WantedHost, name: str) -> Iterator[Finding]:
    interface = next(each for each in report.facts.interfaces if each.name == name)
    if not interface.up and interface.device:
        evidence = f"{name}, which has its address, is down"
        run = f"ip link set {name} up (as root); look at the cable"
        yield wrong(codes.INTERFACE, report.host, evidence, run)
    # A virtual interface reports any speed.
    elif interface.device and interface.speed and interface.speed < want.host.speed:
        planned = show_speed(want.host.speed)
        evidence = f"{name} runs at {show_speed(interface.speed)}, the inventory says {planned}"
        run = f"ethtool {name}; look at cable and switch, or correct `speed`"
        yield note(codes.INTERFACE, report.host, evidence, run)
