"""Parse the doctor's sections of the probe. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from calendar import timegm
from collections.abc import Iterator, Mapping
from typing import Any

from kit.discover.parse import json_of, sections_of
from kit.doctor.facts import (
    Container,
    Fabric,
    GpuHealth,
    HostImage,
    Node,
    Process,
    Room,
    Swarm,
    Vitals,
)
from kit.doctor.kernel import read_losses, read_sxids, read_xids
from kit.values import names_gpu

_UTC_TIME = re.compile(rb"\x17\x0d(\d{12})Z")
"""A time in a certificate (UTCTime of X.680); the first two are the bounds of its validity."""


def read_vitals(printed: str) -> Vitals:
    """Return the doctor's facts; missing values stay empty."""
    printed_sections = sections_of(printed)

    def section(name: str) -> str:
        return printed_sections.get(name, "")

    info = json_of(section("docker-info"))
    kernel = [*section("kernel").splitlines(), "", ""]
    memory = dict(re.findall(r"^(\w+): +(\d+) kB$", section("memory"), re.MULTILINE))
    log = section("kernel-log")
    swap = int(memory.get("SwapTotal", 0)) - int(memory.get("SwapFree", 0))
    return Vitals(
        began=_float(section("began")) or 0.0,
        clock=_float(section("clock")) or 0.0,
        overcommit=kernel[0].strip(),
        uptime=_float(kernel[1].partition(" ")[0]) or 0.0,
        swap_used=max(swap, 0) * 1024,
        cgroup_driver=info.get("CgroupDriver", ""),
        health=tuple(_health(printed_sections)),
        processes=tuple(_processes(section("gpu-processes"))),
        xids=read_xids(log) if log else None,
        losses=read_losses(log),
        sxids=read_sxids(log),
        fabrics=tuple(_fabrics(section("gpu-fabric"))),
        fabric_manager=not {"active", "running"}.isdisjoint(section("fabric-manager").split()),
        toolkit=dict(_settings(section("toolkit-config"))),
        char_devices=len(section("char-devices").splitlines()),
        rooms=tuple(_rooms(section("room"))),
        missing=tuple(re.findall(r"^missing (.+)$", section("paths"), re.MULTILINE)),
        lookups=dict(_lookups(section("names"))),
        images=dict(_images(section("images"))),
        containers=tuple(_containers(section("containers"), section("published"))),
        networks=tuple(section("networks").split()),
        volumes=frozenset(section("volumes").splitlines()),
        listening=frozenset(
            int(port, 16) for port in re.findall("^[0-9A-F]{4}$", section("listening"), re.M)
        ),
        swarm=_swarm(info, section("nodes"), section("certificate")),
    )


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rows(text: str, least: int) -> Iterator[list[str]]:
    """Yield the rows of a query to nvidia-smi; its errors have no UUID."""
    for line in text.splitlines():
        row = [field.strip() for field in line.split(",", least - 1)]
        if len(row) == least and names_gpu(row[0]):
            yield row


def _health(printed_sections: Mapping[str, str]) -> Iterator[GpuHealth]:
    throttled = {row[0]: row[1] for row in _rows(printed_sections.get("gpu-throttle", ""), 2)}
    rows = {row[0]: row[1:] for row in _rows(printed_sections.get("gpu-rows", ""), 3)}
    for row in _rows(printed_sections.get("gpu-health", ""), 5):
        mask = throttled.get(row[0], "")
        pending, failed = rows.get(row[0], ["", ""])
        yield GpuHealth(
            uuid=row[0],
            persistence={"Enabled": True, "Disabled": False}.get(row[1]),
            power_limit=_float(row[2]),
            power_default=_float(row[3]),
            ecc_errors=int(row[4]) if row[4].isdigit() else None,
            throttled=int(mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", mask) else None,
            pending=_yes(pending),
            failed=_yes(failed),
        )


def _yes(text: str) -> bool:
    return text.lower() in {"yes", "1", "true"}


def _processes(text: str) -> Iterator[Process]:
    for gpu, pid, container, memory, name in _rows(text, 5):
        if pid.isdigit():
            used = int(memory) if memory.isdigit() else None
            yield Process(gpu, int(pid), container, used, name)


def _fabrics(text: str) -> Iterator[Fabric]:
    """Yield the states of GPUs that have one; others report N/A, and older drivers an error."""
    for uuid, state, status in _rows(text, 3):
        if state.strip("[]") not in {"N/A", "Not Supported"}:
            yield Fabric(uuid, state, status)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition("=")
        yield name.strip(), value.partition("#")[0].strip().strip('"')


def _rooms(text: str) -> Iterator[Room]:
    for line in text.splitlines():
        size, free, path = [*line.split(" ", 2), "", ""][:3]
        if size.isdigit() and free.isdigit():
            yield Room(path, int(size) * 1024, int(free) * 1024)


def _lookups(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        name, _, milliseconds = line.rpartition(" ")
        if milliseconds.isdigit():
            yield name, int(milliseconds) / 1000


def _images(text: str) -> Iterator[tuple[str, HostImage]]:
    for line in text.splitlines():
        name, identifier, digests, architecture = [*line.split("|", 3), "", "", ""][:4]
        listed = json.loads(digests) if digests.startswith("[") else []
        found = tuple(each.rpartition("@")[2] for each in listed)
        yield name, HostImage(identifier, found, architecture)


def _containers(text: str, published: str) -> Iterator[Container]:
    open_ports = {line.partition("|")[0]: line.split("|") for line in published.splitlines()}
    for line in text.splitlines():
        row = line.split("|", 7)
        if len(row) < 8:
            continue
        requests = json.loads(row[6]) if row[6].startswith("[") else []
        _, networks, ports, health = [*open_ports.get(row[0], []), "", "", "", ""][:4]
        requested: list[str] = []
        for each in requests:
            every = each.get("Count") == -1
            requested += ["all"] if every else each.get("DeviceIDs") or ()
        yield Container(
            id=row[0],
            name=row[1].removeprefix("/"),
            image=row[2],
            runtime="" if row[3] == "<no value>" else row[3],
            group=next((each for each in row[4:6] if each not in {"", "<no value>"}), ""),
            requested=tuple(requested),
            visible=row[7].partition("=")[2] if row[7] else None,
            host_network="host" in networks.split(),
            ports=tuple(sorted({int(port) for port in ports.split() if port.isdigit()})),
            health=health,
        )


def _swarm(info: Mapping[str, Any], nodes: str, certificate: str) -> Swarm:
    swarm = info.get("Swarm") or {}
    lines = nodes.splitlines()
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    start, end = _validity(certificate)
    return Swarm(
        state=swarm.get("LocalNodeState", ""),
        fault=swarm.get("Error", "") or (faults[-1] if faults else ""),
        node=swarm.get("NodeID", ""),
        address=swarm.get("NodeAddr", ""),
        manager=bool(swarm.get("ControlAvailable")),
        cluster=(swarm.get("Cluster") or {}).get("ID", ""),
        managers=tuple(each["Addr"] for each in swarm.get("RemoteManagers") or ()),
        nodes=tuple(_nodes(lines)),
        valid_from=start,
        valid_until=end,
    )


def _nodes(lines: list[str]) -> Iterator[Node]:
    for line in lines:
        row = line.split("|", 8)
        if len(row) == 9:
            labels = json.loads(row[8]) if row[8].startswith("{") else {}
            own = tuple(sorted(labels.items()))
            yield Node(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], own)


def _validity(certificate: str) -> tuple[float | None, float | None]:
    """Return the bounds of the validity of a certificate in PEM."""
    body = re.search(r"-----BEGIN CERTIFICATE-----(.+?)-----END", certificate, re.DOTALL)
    try:
        times = _UTC_TIME.findall(base64.b64decode("".join(body[1].split()))) if body else []
    except binascii.Error:
        times = []
    if len(times) < 2:
        return None, None
    start, end = (_utc(each.decode()) for each in times[:2])
    return start, end


def _utc(digits: str) -> float:
    """Return YYMMDDhhmmss in seconds since the epoch."""
    parts = [int(digits[at : at + 2]) for at in range(0, 12, 2)]
    return float(timegm((2000 + parts[0], *parts[1:])))
