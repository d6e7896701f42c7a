"""How processes of this machine reach each other: over loopback, each at its port. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from kit.plan.data import DataPlan
from kit.plan.work import JobPlan, ServerPlan
from kit.workload.addressing import DataAddresses, JobAddresses, ServerAddresses
from kit.workload.monitoring import metrics_port
from kit.workload.ports import Listener, Service, services
from kit.workload.training import own_port
from kit.workload.types import Part, Rendezvous, Role, Workload

HERE = "127.0.0.1"


class LocalAddressing:
    """The addresses of processes. A server is one process for all hosts, so it needs no proxy."""

    on_hosts: ClassVar[bool] = False
    proxies: ClassVar[bool] = False

    def job(self, job: JobPlan) -> JobAddresses:
        """Return where the hosts of a job meet; see `Addressing.job`."""
        # The variables against hangs are not needed here, and torch warns about their old names.
        meeting = Rendezvous(job.hosts[0], HERE, own_port(job))
        return JobAddresses(meeting, host_network=False, defaults={})

    def server(self, server: ServerPlan, offered: Sequence[Part]) -> ServerAddresses:  # noqa: ARG002
        """Return where a server finds checkpoints: on the disk of this machine."""
        return ServerAddresses(host_network=False)

    def data(self, data: DataPlan) -> DataAddresses:
        """Return how the data services reach each other; see `Addressing.data`."""
        return DataAddresses(f"http://{HERE}:{data.port}", alone=True)

    def monitoring(self, workloads: Sequence[Workload]) -> None:
        """Return None: kit starts no monitoring here."""

    def listeners(self, workload: Workload) -> Iterator[Listener]:
        """Yield the ports that a workload opens: its hosts share one address."""
        for part in workload.parts:
            for port in part.ports:
                if part.role is not Role.TRAIN:
                    yield Listener(workload, port, part.hosts[0], HERE)
        ports = metrics_ports(workload)
        for part in workload.working if ports else ():
            for host in part.hosts:
                own = replace(part.ports[0], number=ports[host.name])
                yield Listener(workload, own, host, HERE)

    def services(self, parts: Iterable[Part]) -> Iterator[Service]:
        """Yield the ports that the data services open."""
        return services(parts, HERE)


def metrics_ports(workload: Workload) -> dict[str, int]:
    """Return the port of each host's metrics: the hosts share one address here."""
    first = metrics_port(workload)
    names = [placement.host.name for placement in workload.placements]
    return {} if first is None else {name: first + index for index, name in enumerate(names)}
