"""How tasks of a Swarm reach each other: by names on the overlay, or at their hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kit.addresses import endpoint
from kit.plan.data import DataPlan
from kit.plan.work import JobPlan, Plan, ServerPlan, manager_of
from kit.targets.swarm.names import checkpoints_alias, metrics_alias, monitoring_stack
from kit.workload.addressing import (
    DataAddresses,
    JobAddresses,
    MonitoringAddresses,
    ServerAddresses,
)
from kit.workload.data import some_peers
from kit.workload.monitoring import PROMETHEUS_PORT, Scrape, job_scrapes, metrics_port
from kit.workload.names import stack_of_job
from kit.workload.ports import Listener, Service, services
from kit.workload.serving import MOST_SOURCES, source_hosts
from kit.workload.training import METRICS_PORT, RENDEZVOUS_PORT, own_port
from kit.workload.types import Part, Rendezvous, Role, Workload
from kit.workload.variables import FAULT_VARIABLES


@dataclass(frozen=True, slots=True)
class SwarmAddressing:
    """The addresses of a plan's tasks. A name contains its stack, as all share one network."""

    plan: Plan
    on_hosts: ClassVar[bool] = True
    proxies: ClassVar[bool] = True

    @property
    def host_network(self) -> bool:
        """Whether all tasks use the network of their host."""
        return self.plan.network.driver == "host"

    def job(self, job: JobPlan) -> JobAddresses:
        """Return where the hosts of a job meet; see `Addressing.job`."""
        # Managers stay, while training hosts may leave and return.
        host = manager_of(self.plan.hosts)
        if self.host_network:
            meeting = Rendezvous(host, host.address, own_port(job))
        else:
            name = f"{stack_of_job(job.name)}_{Role.RENDEZVOUS}"
            meeting = Rendezvous(host, name, job.job.port or RENDEZVOUS_PORT)
        # Swarm cannot add devices; this makes the nvidia runtime add those of InfiniBand.
        infiniband = {"NVIDIA_MOFED": "enabled"} if self.plan.network.infiniband else {}
        defaults = FAULT_VARIABLES | infiniband
        own = not self.host_network
        return JobAddresses(meeting, self.host_network, defaults, own_addresses=own)

    def server(self, server: ServerPlan, offered: Sequence[Part]) -> ServerAddresses:
        """Return where a server finds checkpoints; Swarm may move the endpoints to all hosts."""
        if not self.host_network:
            names = [checkpoints_alias(server.name)]
            listen = {part.name: names for part in offered}
        else:
            offering = [host for part in offered for host in part.hosts]
            hosts = source_hosts(self.plan, server, offering) if offered else ()
            names = [host.address for host in hosts]
            listen = {part.name: [host.address for host in part.hosts] for part in offered}
        port = server.server.transfer_port
        return ServerAddresses(
            host_network=self.host_network,
            sources=tuple(f"http://{name}:{port}" for name in names) if offered else (),
            listen={name: places for name, places in listen.items() if len(places) <= MOST_SOURCES},
        )

    def data(self, data: DataPlan) -> DataAddresses:
        """Return how the data services reach each other; see `Addressing.data`."""
        if self.host_network:
            peers = [endpoint(host.address, data.peer_port) for host in data.agents]
            url = f"http://{endpoint(data.storage.address, data.port)}"
            return DataAddresses(url, some_peers(data, peers))
        stack = f"{self.plan.cluster}-platform"
        names = ["data-storage", *([Role.DATA_AGENT] if len(data.agents) > 1 else [])]
        peers = [f"tasks.{stack}_{name}:{data.peer_port}" for name in names]
        return DataAddresses(f"http://{stack}_{Role.DATA_SERVER}:{data.port}", tuple(peers))

    def monitoring(self, workloads: Sequence[Workload]) -> MonitoringAddresses:
        """Return where the monitoring finds jobs: by a name, or at the addresses of their hosts."""
        if self.host_network:
            where = f"http://127.0.0.1:{PROMETHEUS_PORT}"
            return MonitoringAddresses(job_scrapes(workloads), where, host_network=True)
        # A job without a port of its own adds no port: the configuration stays.
        own = (port for each in workloads if (port := metrics_port(each)))
        scrapes = tuple(map(_scrape, sorted({METRICS_PORT, *own})))
        stack = monitoring_stack(self.plan.cluster)
        where = f"http://{stack}_{Role.PROMETHEUS}:{PROMETHEUS_PORT}"
        return MonitoringAddresses(scrapes, where, host_network=False)

    def listeners(self, workload: Workload) -> Iterator[Listener]:
        """Yield the ports that a workload opens on its hosts: on the overlay, those for clients."""
        for part in workload.parts:
            for port in part.ports:
                if workload.host_network or port.public:
                    for host in part.hosts:
                        yield Listener(workload, port, host, host.address)

    def services(self, parts: Iterable[Part]) -> Iterator[Service]:
        """Yield the ports that parts without a workload open on their hosts."""
        return services(
            part for part in parts if self.host_network or any(port.public for port in part.ports)
        )


def _scrape(port: int) -> Scrape:
    """Return the scrape job of all jobs with metrics at a port."""
    name = "train" if port == METRICS_PORT else f"train-{port}"
    return Scrape(name, dns=metrics_alias(port), port=port, own_labels=True)
