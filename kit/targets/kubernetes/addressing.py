"""How pods reach each other: by the names of Services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kit.plan.data import DataPlan
from kit.plan.work import JobPlan, Plan, ServerPlan
from kit.targets.kubernetes.names import rendezvous_name, service_names
from kit.workload.addressing import DataAddresses, JobAddresses, ServerAddresses
from kit.workload.ports import Listener, Service
from kit.workload.training import RENDEZVOUS_PORT
from kit.workload.types import Part, Rendezvous, Workload
from kit.workload.variables import FAULT_VARIABLES


@dataclass(frozen=True, slots=True)
class KubernetesAddressing:
    """The addresses of a plan's pods. A Service stands for all hosts of a server."""

    plan: Plan
    on_hosts: ClassVar[bool] = False
    proxies: ClassVar[bool] = False

    def job(self, job: JobPlan) -> JobAddresses:
        """Return where the hosts of a job meet; one volume has the checkpoints of all hosts."""
        port, settings = job.job.port or RENDEZVOUS_PORT, self.plan.kubernetes
        # The scheduler places the coordinator: the host here has no meaning.
        meeting = Rendezvous(job.hosts[0], rendezvous_name(job.name), port)
        return JobAddresses(
            meeting,
            host_network=False,
            defaults=FAULT_VARIABLES,
            own_addresses=True,
            shared_checkpoints=True,
            # Among named hosts, the template of the Job names them: it cannot be changed.
            resizes=settings is not None and settings.pool and settings.job_kind == "Job",
            monitored=settings is not None and settings.prometheus_operator,
        )

    def server(self, server: ServerPlan, offered: Sequence[Part]) -> ServerAddresses:  # noqa: ARG002
        """Return the names of a server's Service; checkpoints are in a volume of its job."""
        settings = self.plan.kubernetes
        names = service_names(server.name, settings.namespace) if settings else ()
        return ServerAddresses(host_network=False, names=names)

    def data(self, data: DataPlan) -> DataAddresses:
        """Return no peers: the target refuses data services; see `refusals`."""
        return DataAddresses(f"http://{data.storage.name}:{data.port}", alone=True)

    def monitoring(self, workloads: Sequence[Workload]) -> None:
        """Return None: the target refuses kit's monitoring; see `refusals`."""

    def listeners(self, workload: Workload) -> Iterable[Listener]:  # noqa: ARG002
        """Return nothing: a pod has its own address, and opens no port of its host."""
        return ()

    def services(self, parts: Iterable[Part]) -> Iterable[Service]:  # noqa: ARG002
        """Return nothing, as for workloads."""
        return ()
