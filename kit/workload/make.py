"""From a plan to parts: everything that runs, made once for every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kit.errors import Fault
from kit.plan.work import Plan, ServerPlan
from kit.workload.addressing import Addressing
from kit.workload.data import data_parts
from kit.workload.monitoring import (
    Monitoring,
    engine_services,
    monitoring,
    platform_parts,
    server_scrapes,
)
from kit.workload.ports import Listener, OpenPort, Service, low_port_faults, open_ports, port_faults
from kit.workload.proxy import proxy_host, with_proxy
from kit.workload.registry import registry_part
from kit.workload.serving import endpoints, serving
from kit.workload.settings import Variable
from kit.workload.training import training
from kit.workload.types import Part, Workload


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a plan.

    `workloads` are the jobs, then the servers, including idle ones; the other parts belong to none
    of them. `services` are the ports that those open on hosts, `listeners` those of the workloads.
    """

    workloads: tuple[Workload, ...]
    registry: Part | None
    data: tuple[Part, ...]
    monitoring: Monitoring | None
    services: tuple[Service, ...]
    listeners: tuple[Listener, ...]

    @property
    def ports(self) -> Mapping[str, tuple[OpenPort, ...]]:
        """The open ports of each host."""
        return open_ports(self.services, self.listeners)

    def faults(self) -> list[Fault]:
        """Return the conflicts of ports, and the ports that only root may open."""
        return [
            *port_faults(self.services, self.listeners),
            *low_port_faults(self.workloads),
        ]


def make_parts(plan: Plan, addressing: Addressing) -> Parts:
    """Make the parts of a plan, which reach each other by `addressing`."""
    data, data_url = _data(plan, addressing)
    jobs = [training(plan, each, addressing.job(each), data_url) for each in plan.jobs]
    servers = [_server(plan, each, addressing) for each in plan.servers]
    registry = registry_part(plan) if addressing.on_hosts else None
    monitoring_services = _monitoring(plan, addressing, [*jobs, *servers])
    shared = (*((registry,) if registry else ()), *platform_parts(monitoring_services), *data)
    services = [*addressing.services(shared)]
    services += engine_services(plan) if addressing.on_hosts else ()
    workloads = (*jobs, *_proxied(plan, addressing, services, jobs, servers))
    return Parts(
        workloads=workloads,
        registry=registry,
        data=data,
        monitoring=monitoring_services,
        services=tuple(services),
        listeners=_listeners(addressing, workloads),
    )


def _data(plan: Plan, addressing: Addressing) -> tuple[tuple[Part, ...], str]:
    """Return the data services, and the URL of their server; "" without one."""
    if plan.data is None:
        return (), ""
    addresses = addressing.data(plan.data)
    return data_parts(plan.cluster, plan.data, addresses), addresses.server


def _server(plan: Plan, server: ServerPlan, addressing: Addressing) -> Workload:
    offered = endpoints(server) if addressing.on_hosts else ()
    addresses = addressing.server(server, offered)
    listening = [_listening(each, addresses.listen.get(each.name, ())) for each in offered]
    return serving(plan, server, listening, addresses)


def _listening(part: Part, names: Sequence[str]) -> Part:
    """Make an endpoint of checkpoints listen only at the names that servers use."""
    if not names:
        return part
    variable = Variable("KIT_ADDRESS", ",".join(names))
    return replace(part, environment=(*part.environment, variable))


def _monitoring(
    plan: Plan, addressing: Addressing, workloads: Sequence[Workload]
) -> Monitoring | None:
    addresses = addressing.monitoring(workloads) if plan.monitoring else None
    if addresses is None:
        return None
    scrapes = (*addresses.scrapes, *server_scrapes(workloads))
    return monitoring(plan, scrapes, addresses.prometheus, host_network=addresses.host_network)


def _proxied(
    plan: Plan,
    addressing: Addressing,
    services: Sequence[Service],
    jobs: Sequence[Workload],
    servers: Sequence[Workload],
) -> Sequence[Workload]:
    """Add the proxies of servers. They skip hosts where another service has the server's port."""
    proxies = [each.server.proxy for each in plan.serving if each.server.proxy]
    if not (proxies and addressing.proxies):
        return servers
    taken = {(each.port.number, each.host.name) for each in services}
    listeners = _listeners(addressing, (*jobs, *servers))
    taken |= {(each.port.number, each.host.name) for each in listeners}
    taken |= {(proxy.port, proxy_host(plan, proxy).name) for proxy in proxies}
    return [
        with_proxy(plan, each, workload, {host for port, host in taken if port == each.server.port})
        for each, workload in zip(plan.servers, servers, strict=True)
    ]


def _listeners(addressing: Addressing, workloads: Sequence[Workload]) -> tuple[Listener, ...]:
    return tuple(each for work in workloads for each in addressing.listeners(work))
