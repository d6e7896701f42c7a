"""Checks of the platform's services: their ports, and the disk space for data sets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kit.doctor import codes
from kit.doctor.facts import Container, DataNeed, Report, Wanted, WantedHost
from kit.doctor.findings import Finding, ok, wrong
from kit.values import show_bytes
from kit.workload.ports import DATA_SERVICES, OpenPort


def check(report: Report, want: WantedHost, wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings of one host."""
    own = [each for each in report.vitals.containers if is_own(each, wanted)]
    if want.ports:
        yield from _ports(report, want, own)
    if want.data is not None:
        yield from _room(report, want.data)
    yield from _health(report, want, own)


def is_own(container: Container, wanted: Wanted) -> bool:
    """Return whether kit has started a container for this cluster."""
    platform = (f"{wanted.cluster}-", f"{wanted.cluster}_")
    return container.group in wanted.stacks or container.group.startswith(platform)


def _ports(report: Report, want: WantedHost, own: Collection[Container]) -> Iterator[Finding]:
    others = [each for each in report.vitals.containers if each not in own]
    used = False
    for port in want.ports:
        number = port.port.number
        foreign = next((each for each in others if number in each.ports), None)
        held = any(_holds(each, port) for each in own)
        if foreign or (number in report.vitals.listening and not held):
            used = True
            yield _used(report, port, foreign)
    if not used:
        yield ok(codes.USED_PORT, report.host)


def _holds(container: Container, port: OpenPort) -> bool:
    """Return whether a container of kit may be the one that listens on a port."""
    if not container.host_network:
        return port.port.number in container.ports
    if port.workload:
        return container.group.endswith(port.workload)
    named = port.title.removeprefix("the ").lower().replace(" ", "-")
    return ("data-" if port.title == DATA_SERVICES else named) in container.name


def _used(report: Report, port: OpenPort, container: Container | None) -> Finding:
    by = f"the container {container.name}" if container else "another program"
    evidence = f"{by} listens on port {port.port.number}, which {port.title} needs"
    end = f"docker stop {container.name}" if container else f"ss -tlnp sport = {port.port.number}"
    change = "" if port.port.fixed else f", or write another port: `{port.port.written()}`"
    return wrong(codes.USED_PORT, report.host, evidence, f"{end} (as root there){change}")


def _room(report: Report, need: DataNeed) -> Iterator[Finding]:
    rooms = report.vitals.rooms
    size, names = show_bytes(need.bytes), ", ".join(title for title, _ in need.sets)
    run = "a larger disk, or stream the data set: `{name: …, stream: true}`"
    if need.limit is not None and need.bytes > need.limit:
        evidence = f"{names} have {size}, its cache may have {show_bytes(need.limit)}"
        yield wrong(
            codes.ROOM, report.host, evidence, "data: {cache: …} in the inventory, or stream"
        )
        return
    for room in rooms:
        exists = need.volume in report.vitals.volumes
        free, what = (room.size, "in all") if exists else (room.free, "free")
        if need.bytes > free:
            evidence = f"{names} need {size}, {room.path} has {show_bytes(free)} {what}"
            yield wrong(codes.ROOM, report.host, evidence, run)
            return
    if rooms:
        yield ok(codes.ROOM, report.host)


def _health(report: Report, want: WantedHost, own: Collection[Container]) -> Iterator[Finding]:
    services = [each for each in own if "_data-" in each.name]
    sick = [each for each in services if each.health == "unhealthy"]
    for each in sick:
        run = f"{want.ssh} docker logs {each.name}"
        yield wrong(codes.HEALTH, report.host, f"{each.name} does not answer", run)
    if services and not sick:
        yield ok(codes.HEALTH, report.host)
