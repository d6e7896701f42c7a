"""How the parts of a plan reach each other: the addresses that each target provides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from kit.plan.data import DataPlan
from kit.plan.work import JobPlan, ServerPlan
from kit.workload.monitoring import Scrape
from kit.workload.ports import Listener, Service
from kit.workload.types import Part, Rendezvous, Workload


@dataclass(frozen=True, slots=True)
class JobAddresses:
    """The coordinator of a job's hosts, and the network on which they train.

    `own_addresses`: each container has an address of its own, so that jobs may use equal ports.
    `defaults` are variables that the target's network and containers need; the inventory and the
    job may override them. `shared_checkpoints`: the target gives all hosts one folder for them.
    `monitored`: a Prometheus that is not kit's scrapes them. `resizes`: hosts continue when a
    deploy adds other hosts to the job or removes them.
    """

    rendezvous: Rendezvous
    host_network: bool
    defaults: Mapping[str, str]
    own_addresses: bool = False
    shared_checkpoints: bool = False
    monitored: bool = False
    resizes: bool = True


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where a server finds checkpoints.

    `sources` are the URLs of its endpoints. `listen` are the only names at which an endpoint
    listens, by its part's name; other endpoints listen at all addresses. `names` are those of the
    server for its clients, besides those of its hosts.
    """

    host_network: bool
    sources: tuple[str, ...] = ()
    listen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataAddresses:
    """How the data services reach each other.

    `server` is the server's URL. `peers` are `host:port`; a name may have several addresses.
    `own`: each listens only at the address of its host. `alone`: all hosts are one machine, with
    the agent of the storage host.
    """

    server: str
    peers: tuple[str, ...] = ()
    own: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class MonitoringAddresses:
    """Where Prometheus finds the jobs, and where Grafana finds Prometheus.

    `host_network`: both use the network of their host, and Prometheus only its loopback.
    """

    scrapes: tuple[Scrape, ...]
    prometheus: str
    host_network: bool


class Addressing(Protocol):
    """The addresses of a plan under one target.

    `on_hosts`: containers run on the hosts and open ports there. Otherwise all hosts are this
    machine, or pods of a cluster: these need no registry of kit and no endpoints of checkpoints.
    `proxies`: one address can stand for all hosts of a server.
    """

    on_hosts: ClassVar[bool]
    proxies: ClassVar[bool]

    def job(self, job: JobPlan) -> JobAddresses:
        """Return where the hosts of a job meet."""

    def server(self, server: ServerPlan, offered: Sequence[Part]) -> ServerAddresses:
        """Return where a server finds the checkpoints of the endpoints `offered`."""

    def data(self, data: DataPlan) -> DataAddresses:
        """Return how the data services reach each other."""

    def monitoring(self, workloads: Sequence[Workload]) -> MonitoringAddresses | None:
        """Return where the monitoring finds jobs, or None if the target starts none."""

    def listeners(self, workload: Workload) -> Iterable[Listener]:
        """Return the ports that a workload opens on its hosts."""

    def services(self, parts: Iterable[Part]) -> Iterable[Service]:
        """Return the ports that parts without a workload open on their hosts."""
