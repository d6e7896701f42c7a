"""Notes on hosts that need attention before they are used. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.discover.cable import cable_notes, shared_fast_network
from kit.discover.facts import FAST, DiscoveredHost, HostFacts
from kit.discover.match import short_name
from kit.values import SHARERS, count, show_size, show_speed

CLOCK = 1.0
"""Seconds that clocks may differ; more confuses logs and the certificates of a Swarm."""


def notes_of(hosts: Sequence[DiscoveredHost]) -> Iterator[str]:
    """Yield the notes on all hosts together, then on each host."""
    yield from _fast(hosts)
    yield from cable_notes(hosts)
    yield from _versions(hosts)
    for host in hosts:
        for note in (*_place(host), *_host(host.facts)):
            yield f"{host.name}: {note}"


def _fast(hosts: Sequence[DiscoveredHost]) -> Iterator[str]:
    network = shared_fast_network([host.facts for host in hosts])
    if network is None:
        yield from (note for host in hosts for note in _unused(host))
        return
    links = {
        host.name: next(
            interface
            for interface in host.facts.fast
            if network in {str(address.network) for address in interface.ipv4}
        )
        for host in hosts
    }
    speed = show_speed(min(link.speed or 0 for link in links.values()))
    names = ", ".join(sorted({link.name for link in links.values()}))
    link_text = f"all hosts share {network} by {names} with {speed}"
    elsewhere = []
    for host in hosts:
        addresses = [str(one.ip) for one in links[host.name].ipv4 if str(one.network) == network]
        if host.address not in addresses:
            elsewhere.append(f"{host.name}: {addresses[0]}")
    if elsewhere:
        yield f"{link_text}: write these as their addresses to use it ({', '.join(elsewhere)})"
    else:
        yield f"{link_text}: training uses it, SSH keeps the other one"


def _unused(host: DiscoveredHost) -> Iterator[str]:
    """Yield a note on a fast link, if the host's address is on a slower one."""
    if (host.speed or 0) >= FAST or host.facts.interface_of(host.address) is None:
        return
    for link in host.facts.fast:
        speed_text = f"{host.name}: {link.name} has {show_speed(link.speed or 0)}"
        where = f"write {link.ipv4[0].ip} as its address if the other hosts reach it there"
        yield f"{speed_text}, and its address {host.address} is not on it; {where}"


def _versions(hosts: Sequence[DiscoveredHost]) -> Iterator[str]:
    versions: dict[str, list[str]] = {}
    for host in hosts:
        if host.facts.docker.version:
            versions.setdefault(host.facts.docker.version, []).append(host.name)
    if len(versions) > 1:
        versions_text = "; ".join(
            f"{version} on {', '.join(names)}" for version, names in versions.items()
        )
        yield f"Docker differs: {versions_text}; use one version on all hosts"


def _gpus(facts: HostFacts) -> Iterator[str]:
    """Yield the notes on GPUs that are missing, cannot be used, or have no memory of their own."""
    for error in filter(None, (facts.gpu_fault, *facts.gpu_errors)):
        yield f"nvidia-smi: {error}"
    if facts.unlisted:
        missing = ", ".join(each.title for each in facts.unlisted)
        yield f"nvidia-smi lists {count(facts.cards, 'GPU')}, the PCI bus also has {missing}"
    for gpu in facts.gpus:
        if gpu.split and not gpu.card:
            yield f"{gpu.uuid} has MIG on and no instance: nothing runs on it; see kit doctor"
        if gpu.shared and gpu.memory:
            size = show_size(gpu.memory)
            yield f"{gpu.model} has no memory of its own: {SHARERS} share {size} of the host"


def _place(host: DiscoveredHost) -> Iterator[str]:
    """Yield notes on a new host's name or address if it differs from the machine's or SSH's."""
    if host.known is not None:
        return
    own = short_name(host.facts)
    if own.lower() != host.name:
        difference = f"the host name {own or '(none)'} cannot be a name here"
        yield f"{difference}; choose another in place of {host.name}, if you like"
    if ":" in host.address:
        yield "it has no IPv4 address, which a Swarm needs: only `engine: compose` is possible"
    elif ":" in host.facts.reached or host.facts.reached_by:
        yield f"SSH uses IPv6; its address is {host.address}, because a Swarm needs IPv4"
    elif not host.facts.reached:
        yield f"SSH does not report its address there; correct {host.address} if it is wrong"


def _host(facts: HostFacts) -> Iterator[str]:
    if facts.docker.fault:
        yield f"docker cannot be used: {facts.docker.fault}"
    yield from _gpus(facts)
    toolkit = facts.hook or facts.toolkit or "nvidia" in facts.docker.runtimes
    if facts.gpus and not toolkit and not facts.docker.cdi:
        yield "it has GPUs, but no NVIDIA container toolkit: kit host prepare --run"
    if abs(facts.clock_offset) > CLOCK:
        direction = "ahead" if facts.clock_offset > 0 else "behind"
        yield f"its clock is {abs(facts.clock_offset):.0f} s {direction}: set up NTP (timedatectl)"
    for port in facts.rdma:
        if not port.active:
            yield f"{port.device} ({port.link}) has no link"
