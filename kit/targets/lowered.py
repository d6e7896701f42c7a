"""A lowered plan: workloads in a target's terms, and the files to render."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kit.model import EngineName, Host
from kit.plan.images import unlocked
from kit.plan.notes import lock_notes
from kit.plan.storage import volume_name
from kit.plan.types import Volume
from kit.plan.work import Plan
from kit.retention import KeptLogs
from kit.values import show_size
from kit.workload.monitoring import (
    COLLECTOR,
    COLLECTOR_CONTROL,
    DASHBOARDS,
    FOLDER,
    KEEPER,
    Scrape,
)
from kit.workload.ports import OpenPort
from kit.workload.settings import Config
from kit.workload.types import Part, Workload

VERSION = "{hash of this file}"
"""The placeholder in a file's labels for the hash of the file."""
VERSION_BELOW = "{hash of what follows}"
"""The placeholder for the hash of the text that follows it in a file, for a service that other
changes of the file must not restart."""
LABEL = re.compile(r'kit\.file: "([0-9a-f]{8})"')
HOST_FILE = "kit-host.sh"
"""The program with which owners reclaim hosts from the queue, on the hosts themselves."""
STEPS_FILE = "prepare-host.sh"
"""The script with the steps that prepare a host, which the script of each host includes."""
MERGE_FILE = "prepare-daemon.py"
"""The program that merges daemon.json on a host, which the steps call."""


def digest(text: str) -> str:
    """Return a short hash of a text: 8 digits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def file_version(text: str) -> str:
    """Return the hash in a rendered file's labels, or of its text if it has no label."""
    label = LABEL.search(text)
    return label[1] if label else digest(text)


def service_versions(text: str) -> dict[str, str]:
    """Return the hashes in the labels of a rendered Compose file, by service."""
    versions, service = {}, ""
    for line in text.splitlines():
        if begins := re.fullmatch(r"  ([\w-]+):", line):
            service = begins[1]
        if label := LABEL.search(line):
            versions[service] = label[1]
    return versions


@dataclass(frozen=True, slots=True)
class Output:
    """A file of the tree: a template and its values.

    `sources` are the files besides the inventory that its header names; JSON files have no header.
    The template gets `configs` with names that contain the hash of their content.
    `hashes_configs`: the hash in its labels covers their content too, because the names of its
    mounts do not. `others` are the configs of other outputs by their stack; the template gets them
    in the same way, as `generated`.
    """

    path: str
    template: str
    values: Mapping[str, object]
    sources: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()
    stack: str = ""
    hashes_configs: bool = False
    others: tuple[tuple[str, tuple[Config, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Lowered:
    """A plan in the terms of one target.

    `workloads` are the jobs, then the servers, including idle ones. `images` are the names of the
    images that hosts run, `optional_images` of those that no host pulls. `notes` come from the
    plan and from the target. `ports` are the ports that containers open on each host. `on_hosts`:
    containers run on the hosts, otherwise processes on this machine. With Swarm, `managers` are its
    managers, of which the first is queried, `labels` are those of each host's node, and
    `overlay` is the name of the network, "" if tasks use that of the hosts.
    """

    engine: EngineName
    plan: Plan
    workloads: tuple[Workload, ...]
    outputs: tuple[Output, ...] = ()
    images: tuple[str, ...] = ()
    optional_images: tuple[str, ...] = ()
    own_notes: tuple[str, ...] = field(default=())
    ports: Mapping[str, tuple[OpenPort, ...]] = field(default_factory=dict)
    on_hosts: bool = True
    managers: tuple[Host, ...] = ()
    labels: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    overlay: str = ""

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.plan.cluster

    @property
    def unlocked(self) -> tuple[str, ...]:
        """The images that an existing lock lacks."""
        return unlocked(self.images, self.plan.lock)

    @property
    def notes(self) -> tuple[str, ...]:
        """The hints for the user."""
        return (*self.own_notes, *self.plan.notes, *lock_notes(self.unlocked))

    def workload(self, name: str) -> Workload:
        """Return a workload by its name.

        Raises:
            KeyError: There is none.
        """
        return {each.name: each for each in self.workloads}[name]


def monitoring_outputs(
    scrapes: Sequence[Scrape], alertmanager: str, logs: KeptLogs | None = None
) -> Iterator[Output]:
    """Yield the files of the monitoring, the same for every target.

    They are Prometheus' configuration and rules, Grafana's data source and dashboards, and the
    configuration of the log collector with its program, if it keeps lines.
    """
    values = {"scrapes": scrapes, "alertmanager": alertmanager}
    yield Output(f"{FOLDER}/prometheus.yml", f"{FOLDER}/prometheus.yml.j2", values)
    others = ("rules.yml", "datasource.yml", "provider.yml", "dcgm-counters.csv")
    for name in (*others, *(f"dashboards/{board}.json" for board in DASHBOARDS)):
        yield Output(f"{FOLDER}/{name}", f"{FOLDER}/{name}.j2", {})
    if logs is not None:
        kept = {"logs": logs, "size": show_size(logs.size), "control": COLLECTOR_CONTROL}
        for name in (COLLECTOR, KEEPER):
            yield Output(f"{FOLDER}/{name}", f"{FOLDER}/{name}.j2", kept)


def volumes_of(cluster: str, parts: Iterable[Part]) -> tuple[Volume, ...]:
    """Return the volumes that parts of the monitoring keep their files in."""
    sources = (m.source for part in parts for m in part.mounts if m.kind == "volume")
    return tuple(Volume(s, volume_name(cluster, s), None, None, owned=True) for s in sources)
