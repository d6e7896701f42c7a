"""Checks of the traffic between the hosts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kit.doctor import codes
from kit.doctor.facts import Wanted
from kit.doctor.findings import Code, Finding, note, ok, wrong
from kit.doctor.results import ContainerResults, Link

MANAGER, GOSSIP, VXLAN, HIGH = 2377, 7946, 4789, 45123


def check(results: ContainerResults, wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on the links between the hosts."""
    links = results.links
    blind = {each.host: each.udp_fault for each in results.containers if each.udp_fault}
    if wanted.swarm:
        yield from _tcp(links, codes.MANAGER_PORT, MANAGER)
        yield from _tcp(links, codes.GOSSIP_TCP, GOSSIP)
        for code, port in ((codes.GOSSIP_UDP, GOSSIP), (codes.VXLAN, VXLAN)):
            yield from _udp(links, code, port, blind)
    for rendezvous in wanted.rendezvous:
        yield from _tcp(links, codes.RENDEZVOUS, rendezvous.port, rendezvous.job)
    if not wanted.overlay:
        yield from _tcp(links, codes.HIGH_PORTS, HIGH)
    for port in sorted({port for host in wanted.hosts for port in host.service_ports}):
        yield from _service(links, wanted, port)
    yield from _mtu(links, wanted)
    yield from _sources(links, wanted)
    if results.overlay is not None:
        yield from _overlay(results, wanted)
    elif wanted.overlay and links:
        evidence = f"the network {wanted.overlay} does not exist yet"
        yield note(codes.OVERLAY, "", evidence, "kit swarm up")


def _grouped(
    links: Sequence[Link],
    bad: Callable[[Link], str],
    code: Code,
    what: str,
    run: Callable[[str], str],
) -> Iterator[Finding]:
    """Yield one finding for each host that others do not reach, or one for each host that cannot.

    A host that no other host reaches is itself at fault, and so is one that reaches no other.
    """
    failed = {(each.start, each.end): fault for each in links if (fault := bad(each))}
    ends = sorted({end for _, end in failed})
    reported: set[tuple[str, str]] = set()
    starts: dict[str, list[str]] = {}
    for start, end in failed:
        starts.setdefault(start, []).append(end)
    for start, reached in starts.items():
        # It reaches no other host, while the others reach each other.
        others = [each for each in links if each.start == start]
        rest = [pair for pair in failed if start not in pair]
        if len(reached) == len(others) > 1 and not rest:
            fault = next(iter(failed[start, end] for end in reached))
            names = ", ".join(reached)
            yield wrong(code, start, f"{start} → {names}: {what}{fault}", run(start))
            reported |= {(start, end) for end in reached}
    for end in ends:
        from_ = [
            start for start, its_end in failed if its_end == end and (start, end) not in reported
        ]
        if from_:
            fault = failed[from_[0], end]
            yield wrong(code, end, f"{', '.join(from_)} → {end}: {what}{fault}", run(end))
    if links and not failed:
        for host in sorted({each.end for each in links}):
            yield ok(code, host)


def _tcp(links: Sequence[Link], code: Code, port: int, job: str = "") -> Iterator[Finding]:
    tried = [each for each in links if port in each.tcp]
    what = f"{f'coordinator of {job}, ' if job else ''}{port}/tcp: "

    def run(host: str) -> str:
        return f"open {port}/tcp on {host}: ufw allow {port}/tcp, or its iptables rules"

    yield from _grouped(tried, lambda each: each.tcp[port], code, what, run)


def _service(links: Sequence[Link], wanted: Wanted, port: int) -> Iterator[Finding]:
    own = [each for each in links if port in wanted.of(each.end).service_ports]
    titles = {
        each.title for host in wanted.hosts for each in host.ports if each.port.number == port
    }
    what = f"{min(titles)}, {port}/tcp: "

    def run(host: str) -> str:
        return f"kit host prepare {host} --run, or open {port}/tcp on {host}"

    yield from _grouped(own, lambda each: each.tcp[port], codes.SERVICE_PORT, what, run)


def _udp(links: Sequence[Link], code: Code, port: int, blind: dict[str, str]) -> Iterator[Finding]:
    for host, fault in blind.items():
        evidence = (
            f"{port}/udp was not tried: a container cannot watch the host's network ({fault})"
        )
        yield note(code, host, evidence)

    def bad(link: Link) -> str:
        return "" if port in link.udp else "no packet arrives"

    def run(host: str) -> str:
        return f"open {port}/udp on {host}: ufw allow {port}/udp, or its iptables rules"

    seeing = [each for each in links if each.end not in blind and port in each.tried]
    for host in sorted({each.end for each in links if port not in each.tried}):
        yield note(code, host, f"{port}/udp was not tried: the address is one of IPv6")
    yield from _grouped(seeing, bad, code, f"{port}/udp: ", run)


def _mtu(links: Sequence[Link], wanted: Wanted) -> Iterator[Finding]:
    tried = [each for each in links if VXLAN in each.udp]

    def bad(link: Link) -> str:
        if wanted.mtu in link.passed:
            return ""
        large = [size for size in link.passed if size > 500]
        most = f"{max(large)} bytes pass" if large else "only small ones pass"
        refusal = f" ({link.refused})" if link.refused else ""
        return f"packets of {wanted.mtu} bytes do not pass, {most}{refusal}"

    def run(host: str) -> str:
        return f"network: {{mtu: …}} in the inventory, or the MTU of {host} and of the switch"

    yield from _grouped(tried, bad, codes.MTU, "", run)


def _sources(links: Sequence[Link], wanted: Wanted) -> Iterator[Finding]:
    """Yield hosts whose packets to others leave by another interface than the planned one."""
    for link in links:
        planned = wanted.of(link.start).host.address
        if planned[:1].isdigit() and link.source[:1].isdigit() and link.source != planned:
            evidence = (
                f"packets to {link.end} leave from {link.source}, the inventory says {planned}"
            )
            login, address = wanted.of(link.start).ssh, wanted.of(link.end).host.address
            run = f"{login} ip route get {address}"
            yield wrong(codes.INTERFACE, link.start, evidence, run)


def _overlay(results: ContainerResults, wanted: Wanted) -> Iterator[Finding]:
    assert results.overlay is not None
    alone = {start: error for (start, end), error in results.overlay.items() if start == end}
    # A host that starts no container at all has a finding already.
    idle = {each.host for each in results.containers if each.fault}
    for host, error in alone.items():
        if host in idle:
            continue
        logs = f"{wanted.of(host).ssh} journalctl -u docker --since -10m"
        yield wrong(codes.OVERLAY, host, f"no container starts on the overlay: {error}", logs)
    links = [
        Link(start, end, {0: error}, frozenset(), frozenset(), (), "", "")
        for (start, end), error in results.overlay.items()
        if start != end and end not in alone
    ]

    def run(host: str) -> str:
        return f"see the findings on 4789/udp, 7946 and the MTU; then restart Docker on {host}"

    yield from _grouped(links, lambda each: each.tcp[0], codes.OVERLAY, "", run)
    yield from _rendezvous(results, wanted)


def _rendezvous(results: ContainerResults, wanted: Wanted) -> Iterator[Finding]:
    """Yield findings on links to coordinators of running jobs, or to the host of a future one."""
    assert results.overlay is not None
    for (host, job), error in results.reached.items():
        run = f"kit logs {job}; look at the coordinator's task: docker service ps"
        if error:
            yield wrong(codes.RENDEZVOUS, host, f"coordinator of {job}: {error}", run)
        else:
            yield ok(codes.RENDEZVOUS, host)
    managers = {host.name for host in wanted.hosts if host.manager}
    for (start, end), error in results.overlay.items():
        if end in managers and start != end and not error:
            yield ok(codes.RENDEZVOUS, start)
