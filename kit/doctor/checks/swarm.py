"""Checks of the Swarm: membership, labels, quorum, certificates, addresses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.doctor import codes
from kit.doctor.facts import Node, Report, Wanted, WantedHost
from kit.doctor.findings import Finding, note, ok, wrong
from kit.values import show_age

NOWHERE = "none"
"""The value of a label that means the same as no label (kit.targets.swarm.labels)."""
LATE = 0.1
"""The share of its life that a certificate has left if its renewal has failed: a node renews it
between 0.5 and 0.8 (swarmkit, ca/renewer.go)."""


def check(reports: Sequence[Report], wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on the Swarm; none before a host is in one."""
    members = [report for report in reports if report.vitals.swarm.state not in {"", "inactive"}]
    if not wanted.swarm or not reports:
        return
    if not members:
        run = "kit swarm up"
        yield note(codes.MEMBER, "", "the hosts are in no Swarm yet", run)
        return
    manager = _manager(members)
    nodes = manager.vitals.swarm.nodes if manager else ()
    for report in reports:
        yield from _member(report, wanted, nodes)
        yield from _certificate(report)
    # Without a manager among the examined hosts, nothing is known about the others.
    if any(each.vitals.swarm.manager or wanted.of(each.host).manager for each in members):
        yield from _quorum(members, manager, nodes)
    for report in members:
        node = next((each for each in nodes if each.id == report.vitals.swarm.node), None)
        if node is not None:
            yield from _labels(report, wanted.of(report.host), node)
            yield from _address(report, wanted.of(report.host))


def _manager(members: Sequence[Report]) -> Report | None:
    """Return the report of a manager that sees nodes, or None."""
    return next((each for each in members if each.vitals.swarm.nodes), None)


def _member(report: Report, wanted: Wanted, nodes: Sequence[Node]) -> Iterator[Finding]:
    swarm, host = report.vitals.swarm, report.host
    if report.facts.docker.fault:
        return
    ids = {node.id: node for node in nodes}
    node = ids.get(swarm.node)
    if swarm.state == "locked":
        run = f"{wanted.of(host).ssh} docker swarm unlock"
        yield wrong(codes.MEMBER, host, "its Swarm is locked", run)
    elif swarm.state != "active":
        evidence = f"its state in the Swarm is {swarm.state or 'unknown'}"
        evidence += f": {swarm.fault}" if swarm.fault else ""
        yield wrong(codes.MEMBER, host, evidence, "kit swarm up")
    elif nodes and node is None:
        evidence = f"it is in another Swarm (managers {', '.join(swarm.managers)})"
        run = f"if nobody needs that Swarm: {wanted.of(host).ssh} docker swarm leave"
        yield wrong(codes.MEMBER, host, evidence, run)
    elif node is not None and node.state != "ready":
        evidence = f"the managers report it as {node.state}: {node.message}".rstrip(": ")
        run = f"{wanted.of(host).ssh} journalctl -u docker --since -10m"
        yield wrong(codes.MEMBER, host, evidence, run)
    elif node is not None and node.availability != "active":
        run = f"docker node update --availability active {node.hostname} (on a manager)"
        yield wrong(codes.MEMBER, host, f"its availability is {node.availability}", run)
    else:
        yield ok(codes.MEMBER, host)


def _quorum(
    members: Sequence[Report], manager: Report | None, nodes: Sequence[Node]
) -> Iterator[Finding]:
    if manager is None:
        faults = [each.vitals.swarm.fault for each in members if each.vitals.swarm.fault]
        evidence = f"no manager answers: {faults[0]}" if faults else "no host is a manager"
        run = "start the managers that are down"
        yield wrong(codes.QUORUM, "", evidence, run)
        return
    managers = [node for node in nodes if node.role == "manager"]
    lost = [node for node in managers if node.reachability not in {"reachable", "leader"}]
    if lost:
        left = max((len(managers) - 1) // 2 - len(lost), 0)
        names = ", ".join(node.hostname for node in lost)
        evidence = f"{len(lost)} of {len(managers)} managers cannot be reached ({names})"
        evidence += f"; the Swarm survives the loss of {left} more"
        yield wrong(codes.QUORUM, "", evidence, "start the managers that are down")
    elif len(managers) > 1 and len(managers) % 2 == 0:
        evidence = f"{len(managers)} managers tolerate no more losses than {len(managers) - 1}"
        yield note(codes.QUORUM, "", evidence, "use an odd number of managers")
    else:
        yield ok(codes.QUORUM, "")


def _labels(report: Report, want: WantedHost, node: Node) -> Iterator[Finding]:
    present = dict(node.labels)
    missing = [(k, v) for k, v in want.labels if present.get(k, NOWHERE) != v]
    if not missing:
        yield ok(codes.LABELS, report.host)
        return
    name, value = missing[0]
    has = f"is {present[name]}" if name in present else "is missing"
    evidence = f"label {name}={value} {has}"
    yield wrong(codes.LABELS, report.host, evidence, "kit swarm up")


def _certificate(report: Report) -> Iterator[Finding]:
    swarm, now = report.vitals.swarm, report.vitals.clock
    if "certificate" in swarm.fault or "x509" in swarm.fault:
        run = "docker swarm leave --force there, then kit swarm up"
        yield wrong(codes.CERTIFICATE, report.host, swarm.fault, run)
        return
    if swarm.valid_from is None or swarm.valid_until is None or not now:
        return
    left, life = swarm.valid_until - now, swarm.valid_until - swarm.valid_from
    if left < 0:
        evidence = f"its certificate expired {show_age(-left)} ago"
        run = "docker swarm leave --force there, then kit swarm up"
        yield wrong(codes.CERTIFICATE, report.host, evidence, run)
    elif left < LATE * life:
        evidence = f"its certificate expires in {show_age(left)} and was not renewed"
        run = "docker swarm ca --rotate (on a manager)"
        yield wrong(codes.CERTIFICATE, report.host, evidence, run)
    else:
        yield ok(codes.CERTIFICATE, report.host)


def _address(report: Report, want: WantedHost) -> Iterator[Finding]:
    used, planned = report.vitals.swarm.address, want.host.address
    # Only addresses can be compared; a name may resolve to several.
    if used and planned and planned[0].isdigit() and used != planned:
        evidence = f"its node has the address {used}, the inventory says {planned}"
        run = f"{want.ssh} docker swarm leave; kit swarm up"
        yield wrong(codes.ADVERTISED, report.host, evidence, run)
    else:
        yield ok(codes.ADVERTISED, report.host)
