"""How containers of Compose projects reach each other: at the addresses of their hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kit.addresses import endpoint
from kit.plan.data import DataPlan
from kit.plan.work import JobPlan, Plan, ServerPlan, manager_of
from kit.workload.addressing import (
    DataAddresses,
    JobAddresses,
    MonitoringAddresses,
    ServerAddresses,
)
from kit.workload.data import some_peers
from kit.workload.monitoring import PROMETHEUS_PORT, job_scrapes
from kit.workload.ports import Listener, Service, services
from kit.workload.serving import source_hosts
from kit.workload.training import RENDEZVOUS_PORT, own_port
from kit.workload.types import Part, Rendezvous, Role, Workload
from kit.workload.variables import FAULT_VARIABLES


@dataclass(frozen=True, slots=True)
class ComposeAddressing:
    """The addresses of a plan's containers.

    With `plan.ipv6`, the containers use the network of their host. A bridge of Docker has no IPv6
    unless its network, and before Docker 27 also the daemon, enables it. Then Docker makes the host
    forward IPv6, and the kernel drops the routes and addresses that routers announce to the host.
    """

    plan: Plan
    on_hosts: ClassVar[bool] = True
    proxies: ClassVar[bool] = False

    def job(self, job: JobPlan) -> JobAddresses:
        """Return where the hosts of a job meet; see `Addressing.job`."""
        network = self.plan.network
        # NCCL and Gloo choose their own ports, so several hosts need the hosts' network.
        shares = len(job.containers) > 1 or network.driver == "host" or network.infiniband
        if shares or self.plan.ipv6 or job.job.queue:
            # Where the queue's controller runs: the hosts of its jobs come and go.
            host = manager_of(self.plan.hosts if job.job.queue else job.hosts)
            return JobAddresses(
                Rendezvous(host, host.address, own_port(job)), True, FAULT_VARIABLES
            )
        meeting = Rendezvous(job.hosts[0], Role.RENDEZVOUS, job.job.port or RENDEZVOUS_PORT)
        return JobAddresses(meeting, False, FAULT_VARIABLES)

    def server(self, server: ServerPlan, offered: Sequence[Part]) -> ServerAddresses:
        """Return where a server finds checkpoints; Compose never moves the endpoints."""
        offering = [host for part in offered for host in part.first_hosts]
        hosts = source_hosts(self.plan, server, offering) if offered else ()
        port = server.server.transfer_port
        # Custom servers fetch nothing from kit. They often listen only on IPv4, to which
        # Docker's proxy passes connections by IPv6.
        host_network = self.plan.ipv6 and server.server.own is None
        return ServerAddresses(
            host_network=host_network,
            sources=tuple(f"http://{endpoint(host.address, port)}" for host in hosts),
            listen={part.name: [host.address for host in part.first_hosts] for part in offered}
            if host_network
            else {},
        )

    def data(self, data: DataPlan) -> DataAddresses:
        """Return how the data services reach each other: at the hosts' published ports."""
        server = f"http://{endpoint(data.storage.address, data.port)}"
        peers = [endpoint(host.address, data.peer_port) for host in data.agents]
        return DataAddresses(server, some_peers(data, peers), own=self.plan.ipv6)

    def monitoring(self, workloads: Sequence[Workload]) -> MonitoringAddresses:
        """Return where the monitoring finds jobs: at the addresses of their hosts."""
        name = "127.0.0.1" if self.plan.ipv6 else Role.PROMETHEUS
        where = f"http://{name}:{PROMETHEUS_PORT}"
        return MonitoringAddresses(job_scrapes(workloads), where, host_network=self.plan.ipv6)

    def listeners(self, workload: Workload) -> Iterator[Listener]:
        """Yield the ports that a workload opens on its hosts; see `Addressing.listeners`."""
        return listeners(workload)

    def services(self, parts: Iterable[Part]) -> Iterator[Service]:
        """Yield the ports that parts without a workload open on their hosts: all of them."""
        return services(parts)


def listeners(workload: Workload) -> Iterator[Listener]:
    """Yield the ports that a workload opens on its hosts."""
    for part in workload.parts:
        # On a network of its own, only the rendezvous' service name is used.
        on_own_network = part.role is Role.RENDEZVOUS and not workload.host_network
        for port in () if on_own_network else part.ports:
            for host in part.first_hosts:
                yield Listener(workload, port, host, host.address)
