"""Traffic between the hosts: each agent gets the list of all others in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit.doctor.active.sessions import ask_each, ask_own, open_session
from kit.doctor.facts import Report, Wanted
from kit.doctor.results import Link, TrialContainer
from kit.hosts.programs import Program, ProgramError
from kit.workload.names import kind_of
from kit.workload.types import Kind

MANAGER, GOSSIP, VXLAN = 2377, 7946, 4789
"""Swarm's ports."""
HIGH = 45123
"""A port in Linux' usual range, as NCCL and Gloo choose them."""
RENDEZVOUS_PORT = 29400
"""The rendezvous' port on the overlay."""
SIZES = (9000, 8950, 8000, 4000, 2000, 1500, 1492, 1480, 1450, 1420, 1400, 1380, 1300, 1280, 1000)
"""Sizes of packets to try below the planned one; MTUs of usual links and tunnels."""
Answer = dict[str, Any] | ProgramError


def with_fault(container: TrialContainer, answer: Answer | None) -> TrialContainer:
    """Return a container's facts with the error of watching UDP."""
    if isinstance(answer, dict) and answer["udp_error"]:
        return replace(container, udp_fault=answer["udp_error"])
    return container


def links(
    sessions: Mapping[str, Program], wanted: Wanted, token: int
) -> tuple[Mapping[str, Answer], tuple[Link, ...]]:
    """Return the answers of the agents to `listen`, and the links between all hosts."""
    if len(sessions) < 2:
        return {}, ()
    meant = {name: _tcp_ports(name, wanted) for name in sessions}
    listens = {
        name: {"do": "listen", "tcp": ports, "udp": [GOSSIP, VXLAN], "token": token}
        for name, ports in meant.items()
    }
    listening = ask_own(listens, sessions)
    ports = {str(GOSSIP): [0], str(VXLAN): [0, wanted.mtu]}
    none: Mapping[str, Sequence[int]] = {}
    plain = {name: ":" not in wanted.of(name).host.address for name in sessions}
    pairs = {(a, b): ports if plain[b] else none for a in sessions for b in sessions}
    sent = _send(sessions, wanted, token, pairs)
    received = _received_packets(sessions)
    again = {
        (start, end): ports | {str(VXLAN): [0, wanted.mtu, *(s for s in SIZES if s < wanted.mtu)]}
        for start in sessions
        for end in sessions
        if start != end
        and plain[end]
        and not _all_received(start, received.get(end, set()), wanted.mtu)
    }
    if again:  # A busy host may have lost some packets; or only smaller ones pass.
        _send(sessions, wanted, token, again, tcp=False)
        received = _received_packets(sessions)
    links_tried = [
        _link(start, end, sent[start]["targets"][end], received.get(end, set()), meant[end], wanted)
        for start in sessions
        for end in sessions
        if start != end and end in sent.get(start, {}).get("targets", {})
    ]
    return listening, tuple(links_tried)


def _all_received(start: str, received: set[tuple[str, int, int]], mtu: int) -> bool:
    ports = {port for sender, port, _ in received if sender == start}
    return ports == {GOSSIP, VXLAN} and (start, VXLAN, mtu) in received


def _tcp_ports(name: str, wanted: Wanted) -> list[int]:
    """Return the TCP ports that other hosts must reach on a host."""
    ports = [each.port for each in wanted.rendezvous if each.host == name]
    if wanted.swarm:
        ports += [MANAGER, GOSSIP] if wanted.of(name).manager else [GOSSIP]
    if not wanted.overlay:
        ports.append(HIGH)
    ports += wanted.of(name).service_ports
    return list(dict.fromkeys(ports))


def _send(
    sessions: Mapping[str, Program],
    wanted: Wanted,
    token: int,
    pairs: Mapping[tuple[str, str], Mapping[str, Sequence[int]]],
    *,
    tcp: bool = True,
) -> dict[str, dict[str, Any]]:
    requests: dict[str, dict[str, Any]] = {}
    for start in sessions:
        targets = [
            {
                "host": end,
                "address": wanted.of(end).host.address,
                "tcp": _tcp_ports(end, wanted) if tcp else [],
                "udp": pairs[start, end],
            }
            for end in sessions
            if end != start and (start, end) in pairs
        ]
        if targets:
            requests[start] = {"do": "send", "me": start, "token": token, "targets": targets}
    answers = ask_own(requests, sessions)
    return {name: each for name, each in answers.items() if isinstance(each, dict)}


def _received_packets(sessions: Mapping[str, Program]) -> dict[str, set[tuple[str, int, int]]]:
    answers = ask_each(sessions, "report")
    return {
        name: {(sender, port, size) for sender, port, size in each["heard"]}
        for name, each in answers.items()
        if isinstance(each, dict)
    }


def _link(
    start: str,
    end: str,
    sent: Mapping[str, Any],
    received: set[tuple[str, int, int]],
    meant: Sequence[int],
    wanted: Wanted,
) -> Link:
    own = {(port, size) for sender, port, size in received if sender == start}
    return Link(
        start=start,
        end=end,
        tcp={port: sent["tcp"][str(port)] for port in meant},
        udp=frozenset(port for port, _ in own),
        # The agent watches only IPv4.
        tried=frozenset(() if ":" in wanted.of(end).host.address else (GOSSIP, VXLAN)),
        passed=tuple(sorted(size for port, size in own if port == VXLAN)),
        refused=sent["udp"].get(f"{VXLAN}/{wanted.mtu}", ""),
        source=sent["source"],
    )


def overlay_sessions(
    reports: Sequence[Report], wanted: Wanted, images: Mapping[str, str], token: str
) -> dict[str, Program]:
    """Start an agent on the overlay network of each host, if there is one."""
    known = {name for report in reports for name in report.vitals.networks}
    if not wanted.overlay or wanted.overlay not in known:
        return {}
    nodes = [node for report in reports for node in report.vitals.swarm.nodes]
    # Swarm attaches nothing on nodes that are drained or down; that is a finding already.
    out = {each.id for each in nodes if (each.availability, each.state) != ("active", "ready")}
    options = ["--network", wanted.overlay, "--cap-drop", "ALL"]
    options += ["-e", "NVIDIA_VISIBLE_DEVICES=void"]
    return {
        report.host: open_session(
            wanted.of(report.host).host,
            images[report.host],
            f"kit-doctor-{token}-on-{report.host}",
            options,
        )
        for report in reports
        if report.vitals.swarm.state == "active" and report.vitals.swarm.node not in out
    }


def exchange(sessions: Mapping[str, Program]) -> dict[tuple[str, str], str]:
    """Exchange data between all agents on the overlay; return the errors.

    An agent that did not start has an error for the link to itself.
    """
    request = {"tcp": [RENDEZVOUS_PORT], "udp": [], "token": 0}
    started = ask_each(sessions, "listen", **request)
    faults = {
        (name, name): each.what for name, each in started.items() if isinstance(each, ProgramError)
    }
    ready = {name: each for name, each in sessions.items() if (name, name) not in faults}
    requests = {
        start: {
            "do": "exchange",
            "port": RENDEZVOUS_PORT,
            "targets": [
                {"host": end, "name": session.name}
                for end, session in ready.items()
                if end != start
            ],
        }
        for start in ready
    }
    for start, answer in ask_own(requests, ready).items():
        if isinstance(answer, ProgramError):
            faults[start, start] = answer.what
            continue
        faults |= {(start, end): error for end, error in answer["targets"].items()}
    return faults


def reach(
    sessions: Mapping[str, Program], reports: Sequence[Report], wanted: Wanted
) -> dict[tuple[str, str], str]:
    """Connect to the coordinators of jobs that run; return the errors by host and job."""
    running = {each.group for report in reports for each in report.vitals.containers}
    stacks = {use.workload: use.stack for host in wanted.hosts for use in host.uses}
    errors: dict[tuple[str, str], str] = {}
    names = {job: stack for job, stack in stacks.items() if stack in running}
    targets = [
        {"host": job, "name": f"{stack}_rendezvous", "port": RENDEZVOUS_PORT}
        for job, stack in names.items()
        if kind_of(job) is Kind.JOB
    ]
    if not targets:
        return errors
    for host, answer in ask_each(sessions, "reach", targets=targets).items():
        if isinstance(answer, dict):
            errors |= {(host, job): error for job, error in answer["targets"].items()}
    return errors
