"""The reference of the ports, from the plan of a cluster that has every service."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.model import EngineName
from kit.paths import Paths
from kit.project import load_lowered
from kit.workload.names import kind_of
from kit.workload.ports import OpenPort
from kit.workload.training import METRICS_PORT, PORTS, RENDEZVOUS_PORT
from kit.workload.types import Kind

HEAD = """\
# Ports and who may use them

The table lists all TCP ports that kit's containers open on the hosts, with their defaults. kit's
services have no TLS: use them in a network that you trust, or put a proxy or a VPN in front.
Where a firewall drops packets, `kit host prepare` opens these ports, only for the network of the
host's address in the inventory, and only on the hosts that run the service; `kit host prepare
--check` shows them. [kit doctor](../how-to/doctor.md) reports ports that another program uses or a
firewall closes.

A firewall on the host does not filter ports that Docker *publishes*: Docker forwards them before
the rules for incoming packets, from everywhere. Compose publishes the data services and the
checkpoints only on the host's address in the inventory; all other published ports are open on
every address of their host. A port that nothing uses any longer stays open until you close it.
"""
FOOT = """\

"by the job's name": the port follows from the name, so that jobs do not collide.

Besides these:

- Docker Swarm uses 2377/tcp on managers, and 7946/tcp, 7946/udp and 4789/udp on all hosts. Its
  control traffic has mutual TLS. The data of the overlay is not encrypted, unless the inventory has
  `network: {encrypted: true}`: then the hosts also exchange ESP, IP protocol 50.
- On the hosts' own network (`driver: host`, and Compose for jobs of several hosts) ranks listen on
  ports that NCCL and Gloo choose. They have no password. Let only the hosts of the cluster reach
  each other.
- On an overlay, coordinators, ranks, metrics, checkpoints, data agents and Prometheus are on the
  overlay alone. Prometheus has no password: on the hosts' own network it listens on 127.0.0.1:9090.
- With `engine: local` everything listens on 127.0.0.1.
"""
INVENTORY = """\
cluster: pool
engine: {engine}
hosts:
  pc1: {{address: 10.0.0.1, roles: [manager, storage], gpus: [{{uuid: GPU-a}}]}}
  pc2: {{address: 10.0.0.2, gpus: [{{uuid: GPU-b}}]}}
  pc3: {{address: 10.0.0.3, gpus: [{{uuid: GPU-c, use: inference}}]}}
network: {{driver: {driver}}}
registry: {{address: "pc1:5000", host: pc1}}
data: {{}}
monitoring: {{}}
"""
JOB = "image: t:1\ntrain: {dataset: digits, model: cnn, epochs: 1, batch_size: 1}\n"
SERVER = "image: t:1\njob: digits\n"
PROXY = "proxy: {port: 80}\n"  # Only with Swarm.


@dataclass(frozen=True, slots=True)
class Words:
    """What people need to know of a service: where it runs, and who may use it.

    `port` describes ports that differ from job to job.
    """

    service: str
    where: str
    access: str
    port: str = ""


NAMED = "{0} to {1}, by the job's name"
WORDS: Mapping[tuple[str, str], Words] = {
    ("the data services", "port"): Words(
        "data server", "storage host", "read-only; the cluster's key"
    ),
    ("the data services", "peer_port"): Words(
        "data agents", "storage host, hosts with GPUs", "read-only; manifests: the cluster's key"
    ),
    ("the registry", "address"): Words(
        "registry of images", "its host", "read and write; no password"
    ),
    ("Grafana", "port"): Words("Grafana", "its host", "password of admin"),
    ("the node exporter", "monitoring"): Words(
        "node exporter", "all hosts", "read-only; no password"
    ),
    ("the DCGM exporter", "monitoring"): Words(
        "DCGM exporter", "hosts with GPUs", "read-only; no password"
    ),
    ("the metrics of Docker", "monitoring"): Words(
        "metrics of Docker's engine", "all hosts", "read-only; no password"
    ),
    ("job", "port rendezvous"): Words(
        "coordinator of a job",
        "its first host; under Swarm a manager",
        "read and write; no password",
        port=NAMED.format(RENDEZVOUS_PORT, RENDEZVOUS_PORT + PORTS - 1),
    ),
    ("job", "port metrics"): Words(
        "`GET /metrics` of a job's launcher",
        "hosts of the job",
        "read-only; no password",
        port=NAMED.format(METRICS_PORT, METRICS_PORT + PORTS - 1),
    ),
    ("server", "port"): Words(
        "server of a model",
        "hosts of the server",
        "`token`, if the server has one; also for the metrics of the model",
    ),
    ("server", "port proxy"): Words(
        "proxy of a server: one address for its hosts",
        "its host, by default the first manager",
        "as the server behind it",
    ),
    ("server", "transfer_port"): Words(
        "checkpoints for servers",
        "hosts of the job",
        "read-only; `token` of the server, or the cluster's key",
    ),
}
TARGETS = {
    "Swarm, overlay": (EngineName.SWARM, "overlay"),
    "Swarm, `driver: host`": (EngineName.SWARM, "host"),
    "Compose": (EngineName.COMPOSE, "overlay"),
}


def ports_page() -> str:
    """Return the page of all ports.

    Raises:
        KeyError: A port has no words here.
    """
    found = {name: opened(*target) for name, target in TARGETS.items()}
    used = {key for keys in found.values() for key in keys}
    assert used == set(WORDS), used ^ set(WORDS)
    head = f"| port | service | set by | on | {' | '.join(TARGETS)} | access |\n"
    lines = [head, "| --- " * (len(TARGETS) + 5) + "|\n"]
    for key, words in WORDS.items():
        numbers = sorted(set().union(*(keys.get(key, ()) for keys in found.values())))
        port = words.port or ", ".join(map(str, numbers))
        marks = " | ".join("open" if key in found[name] else "" for name in TARGETS)
        lines.append(
            f"| {port} | {words.service} | {setting(key)} | {words.where} | {marks} "
            f"| {words.access} |\n"
        )
    return f"{HEAD}\n{''.join(lines)}{FOOT}"


def opened(engine: EngineName, driver: str) -> dict[tuple[str, str], set[int]]:
    """Return the ports that a cluster with every service opens, by service and key."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = SERVER + (PROXY if engine is EngineName.SWARM else "")
        for kind, text in (("jobs", JOB), ("serve", server)):
            (folder / kind).mkdir()
            (folder / kind / "digits.yaml").write_text(text, encoding="utf-8")
        text = INVENTORY.format(engine=engine, driver=driver)
        (folder / "inventory.yaml").write_text(text, encoding="utf-8")
        lowered = load_lowered(Paths(folder / "inventory.yaml", None, None, None))
    found: dict[tuple[str, str], set[int]] = {}
    for port in (port for ports in lowered.ports.values() for port in ports):
        found.setdefault(key_of(port), set()).add(port.port.number)
    return found


def key_of(port: OpenPort) -> tuple[str, str]:
    """Return the service and the key that sets its port."""
    key = str(port.port.loc[-1])
    if not port.workload:
        return port.title, key
    if kind_of(port.workload) is Kind.SERVER:
        return "server", f"{key} proxy" if port.port.loc[0] == "proxy" else key
    return "job", f"{key} {port.port.loc[0]}"


def setting(key: tuple[str, str]) -> str:
    """Return the file's key that sets a port."""
    title, name = key
    if title == "job":
        last, section = name.split()
        return f"job: `{section}: {{{last}: …}}`"
    if title == "server":
        last, _, section = name.partition(" ")
        return f"server: `{section}: {{{last}: …}}`" if section else f"server: `{name}: …`"
    if name == "monitoring":
        return "fixed"
    section = {"the data services": "data", "the registry": "registry"}.get(title, "monitoring")
    return f"inventory: `{section}: {{{name}: …}}`"
