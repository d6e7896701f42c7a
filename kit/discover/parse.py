"""Parse the output of `probe.sh`. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kit.discover.engines import REMEDIES, stand_in
from kit.discover.facts import (
    Disk,
    DockerFacts,
    GpuFacts,
    HostFacts,
    InterfaceFacts,
    PciDevice,
    Rdma,
)
from kit.hosts.gpus import other_lines
from kit.values import names_gpu

MIB = 2**20
GIB = 2**30
NO_GPU = "No devices were found"
"""A host without GPUs is not an error, a driver that fails is."""
TEGRA = {"nvidia,tegra194": "Xavier", "nvidia,tegra234": "Orin", "nvidia,tegra264": "Thor"}
"""The chips of Jetsons with the names of their GPUs."""
NOT_MEASURED = frozenset({"[N/A]", "N/A", "[Not Supported]", "Not Supported"})
"""The memory of a GPU that uses the processor's (GB10, Jetson)."""
GATEWAY = 2
"""Flag of a route with a gateway in /proc/net/route (linux/route.h, RTF_GATEWAY)."""


def read_facts(printed: str) -> HostFacts:
    """Return the facts of a host from the output of `probe.sh`; missing values stay empty.

    Raises:
        ValueError: The output is not complete.
    """
    printed_sections = sections_of(printed)
    if "end" not in printed_sections:
        raise ValueError("the output of the probe is not complete")
    sections = defaultdict(str, printed_sections)  # A part of the probe prints only some.
    host = [*sections["host"].splitlines(), "", "", "", ""]
    memory = dict(re.findall(r"^(\w+): +(\d+) kB$", sections["memory"], re.MULTILINE))
    cores, _, model = sections["cpu"].partition("\n")
    total = int(memory.get("MemTotal", 0)) * 1024
    gpus = _gpus(sections, total)
    errors = tuple(line for line in other_lines(sections["gpus"]) if NO_GPU not in line)
    reached, reached_by = _reached(host[3])
    query = _csv(sections["gpu-query"])
    return HostFacts(
        hostname=host[0],
        os=_os(sections["os"]),
        kernel=host[1],
        architecture=host[2],
        reached=reached,
        reached_by=reached_by,
        cpu=model.partition(":")[2].strip(),
        cores=int(cores) if cores.isdigit() else 0,
        memory=total,
        swap=int(memory.get("SwapTotal", 0)) * 1024,
        disks=_disks(sections["disks"]),
        cgroup=2 if sections["cgroup"] == "cgroup2fs" else 1,
        gpus=gpus,
        gpu_fault="" if gpus else "; ".join(errors),
        gpu_errors=errors if gpus else (),
        pci=tuple(_pci(sections["pci"])),
        driver=next((row[4] for row in query.values() if len(row) == 5), ""),
        cuda=sections["cuda"].removeprefix("CUDA Version: "),
        topology=sections["topology"],
        docker=_docker(sections),
        toolkit=_first(r"version (\S+)", sections["toolkit"]),
        hook="nvidia-container-runtime-hook" in sections["toolkit"],
        groups=tuple(sections["groups"].split()),
        interfaces=_interfaces(sections["interfaces"], sections["addresses"]),
        rdma=_rdma(sections["rdma"]),
        route=_route(sections["routes"]),
    )


def clock_of(printed: str) -> float | None:
    """Return the host's time in seconds since the epoch."""
    clock = re.search(r"^@@ clock\n(\d+\.\d+)$", printed, re.MULTILINE)
    return float(clock[1]) if clock else None


def sections_of(printed: str) -> Mapping[str, str]:
    """Return the sections of the output by their names."""
    parts = re.split(r"^@@ (\S+)\n", printed + "\n", flags=re.MULTILINE)
    return {name: text.strip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _reached(connection: str) -> tuple[str, str]:
    """Return the server's address in SSH_CONNECTION, and the interface of a link-local one.

    Without a socket of TCP, OpenSSH writes `UNKNOWN` and the port 65535.
    """
    words = connection.split()
    text, _, zone = words[2].partition("%") if len(words) > 2 else ("", "", "")
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return "", ""
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.version == 6 and ip.is_link_local:
        return "", zone
    return str(ip), ""


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _os(text: str) -> str:
    return _first(r'(?m)^PRETTY_NAME="?([^"\n]*)', text)


def _disks(text: str) -> tuple[Disk, ...]:
    rows = (line.split(maxsplit=6) for line in text.splitlines()[1:])
    return tuple(
        Disk(row[6], row[1], int(row[2]) * 1024, int(row[4]) * 1024)
        for row in rows
        if len(row) == 7 and row[2].isdigit() and row[4].isdigit()
    )


def _csv(text: str) -> dict[str, list[str]]:
    """Return the rows of a query to nvidia-smi, by the UUID in their first field."""
    rows = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return {row[0]: row for row in rows if len(row) > 1}


def _gpus(sections: Mapping[str, str], memory: int) -> tuple[GpuFacts, ...]:
    """Return the GPUs, with MIG instances in place of their card; `memory` is the host's."""
    gpus: list[GpuFacts] = []
    card: GpuFacts | None = None
    for line in sections["gpus"].splitlines():
        if match := re.match(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)", line):
            if names_gpu(match[3]):
                card = _card(sections, match[3], int(match[1]), match[2], memory)
                gpus.append(card)
        elif card and (match := re.match(r"\s+MIG (\S+) .*\(UUID: (MIG-[^)]+)\)", line)):
            gpus = [each for each in gpus if each is not card]
            gpus.append(_instance(card, match[1], match[2]))
    return tuple(gpus) or _jetson(sections["tegra"], memory)


def _jetson(tegra: str, memory: int) -> tuple[GpuFacts, ...]:
    """Return the GPU of a Jetson that nvidia-smi does not list."""
    chips = [TEGRA[line] for line in tegra.splitlines() if line in TEGRA]
    size = memory // GIB * GIB or None
    return tuple(GpuFacts("", 0, chip, size, shared=True) for chip in chips[:1])


def _card(sections: Mapping[str, str], uuid: str, index: int, model: str, memory: int) -> GpuFacts:
    def field(section: str, number: int = 1) -> str:
        row = _csv(sections[section]).get(uuid, [])
        return row[number] if number < len(row) else ""

    megabytes = field("gpu-query", 3)
    shared = megabytes in NOT_MEASURED
    own = int(megabytes) * MIB if megabytes.isdigit() else None
    return GpuFacts(
        uuid=uuid,
        index=index,
        model=model.removeprefix("NVIDIA "),
        memory=memory // GIB * GIB or None if shared else own,
        compute=field("gpu-compute"),
        ecc={"Enabled": True, "Disabled": False}.get(field("gpu-ecc")),
        bus=_address(field("gpu-bus")),
        shared=shared,
        split=field("gpu-mig") == "Enabled",
    )


def _address(text: str) -> str:
    """Return nvidia-smi's PCI address in sysfs' form: `0000:41:00.0` for `00000000:41:00.0`."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[:-4].lstrip('0')}{domain[-4:]}:{rest}" if colon else ""


def _pci(text: str) -> Iterator[PciDevice]:
    for line in text.splitlines():
        address, kind, driver = [*line.split(), "", "", ""][:3]
        yield PciDevice(address, kind, driver)


def _instance(card: GpuFacts, profile: str, uuid: str) -> GpuFacts:
    """Return an instance by its profile, such as `1g.10gb` or `1c.2g.20gb+me`."""
    gigabytes = _first(r"(\d+)gb", profile)
    memory = int(gigabytes) * 2**30 if gigabytes else None
    model = f"{card.model} MIG {profile}"
    return replace(card, uuid=uuid, model=model, memory=memory, card=card.uuid)


def _docker(sections: Mapping[str, str]) -> DockerFacts:
    version = sections["docker"]
    version_json, info_json = json_of(version), json_of(sections["docker-info"])
    server = version_json.get("Server") or {}
    parts = {each["Name"]: each["Version"] for each in server.get("Components") or ()}
    # The client's own version is JSON, before or after the error.
    lines = [line for line in version.splitlines() if line.strip() and line[0] != "{"]
    fault = "" if server else (lines[-1] if lines else "docker is not installed")
    if "not found" in fault:
        fault = "docker is not installed"
    stand = stand_in(version, version_json, info_json, sections["docker-program"])
    resources = [_resource(each) for each in info_json.get("GenericResources") or ()]
    return DockerFacts(
        version=server.get("Version", ""),
        containerd=parts.get("containerd", ""),
        fault=REMEDIES[stand].what if stand else fault,
        runtimes=tuple(sorted(info_json.get("Runtimes") or ())),
        default_runtime=info_json.get("DefaultRuntime", ""),
        cdi=bool(info_json.get("CDISpecDirs")),
        swarm=(info_json.get("Swarm") or {}).get("LocalNodeState", ""),
        generic=tuple(filter(None, resources)),
        stand_in=stand,
    )


def _resource(entry: Mapping[str, Any]) -> str:
    spec = entry.get("NamedResourceSpec") or entry.get("DiscreteResourceSpec") or {}
    return f"{spec.get('Kind', '')}={spec.get('Value', '')}" if spec else ""


def json_of(text: str) -> dict[str, Any]:
    """Return the first line that is JSON; errors may precede or follow it."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            return value if isinstance(value, dict) else {}
    return {}


def _interfaces(listed: str, addresses: str) -> tuple[InterfaceFacts, ...]:
    own: dict[str, list[str]] = {}
    for line in addresses.splitlines():
        if match := re.match(r"\d+: (\S+) +inet6? (\S+) .*scope (\w+)", line):
            name, address, scope = match.groups()
            if scope == "global":
                own.setdefault(name.partition("@")[0], []).append(address)
    rows = ([*line.split(), "", "", ""] for line in listed.splitlines())
    return tuple(
        InterfaceFacts(
            name=row[0],
            device=row[1] == "device",
            up=row[2] == "up",
            mtu=int(row[3]) if row[3].isdigit() else 0,
            speed=int(row[4]) * 10**6 if row[4].isdigit() else None,
            addresses=tuple(own.get(row[0], ())),
        )
        for row in rows
        # Routed clusters have their addresses on the loopback interface.
        if row[0] and (row[0] != "lo" or row[0] in own)
    )


def _rdma(text: str) -> tuple[Rdma, ...]:
    rows = (line.split("|") for line in text.splitlines())
    return tuple(
        Rdma(device, interface, link, "ACTIVE" in state, rate)
        for device, interface, link, state, rate in (row for row in rows if len(row) == 5)
    )


def _route(text: str) -> str:
    """Return the interface of the default route."""
    rows = (line.split() for line in text.splitlines()[1:])
    gateways = (row for row in rows if len(row) > 3 and row[1] == "00000000")
    return next((row[0] for row in gateways if int(row[3], 16) & GATEWAY), "")
