"""The files that prepare the hosts, the same for every target with an engine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from kit.addresses import endpoint
from kit.model import EngineName, Gpu, Host
from kit.plan.work import Plan
from kit.targets.lowered import HOST_FILE, MERGE_FILE, STEPS_FILE, Output
from kit.workload.monitoring import ENGINE_PORT
from kit.workload.ports import OpenPort
from kit.workload.types import Workload


def host_outputs(
    plan: Plan,
    engine: EngineName,
    managers: Collection[Host],
    offered: Callable[[Gpu], str | None],
    insecure: str,
    ports: Mapping[str, Sequence[OpenPort]],
    any_port: Collection[str],
) -> Iterator[Output]:
    """Yield daemon.json and prepare.sh of each host, and the files that these scripts share.

    `offered` returns the name of a GPU for Swarm, None if the target needs none. `insecure` is the
    address of a registry without a certificate, or "". `ports` are those that services open on each
    host; ranks on the hosts of `any_port` listen on ports that they choose.
    """
    pool = _pool(plan)
    for common in (STEPS_FILE, MERGE_FILE, *([HOST_FILE] if pool else [])):
        yield Output(common, f"{common}.j2", {})
    for host in plan.hosts:
        names = tuple(name for gpu in host.gpus if (name := offered(gpu)))
        infiniband = plan.network.infiniband
        daemon = {
            "host": host,
            "resources": names,
            "insecure": insecure,
            "infiniband": infiniband,
            "metrics_at": endpoint("::" if ":" in host.address else "0.0.0.0", ENGINE_PORT)
            if plan.monitoring
            else None,
        }
        yield Output(f"hosts/{host.name}/daemon.json", "hosts/{host}/daemon.json.j2", daemon)
        values = {
            "host": host,
            "engine": engine,
            "manager": host in managers,
            "infiniband": infiniband,
            "ports": ports.get(host.name, ()),
            "any_port": host.name in any_port,
            "pool": host.name in pool,
        }
        yield Output(f"hosts/{host.name}/prepare.sh", "hosts/{host}/prepare.sh.j2", values)


def _pool(plan: Plan) -> frozenset[str]:
    """Return the hosts that jobs of the queue may use; none without a queue."""
    return frozenset(host.name for host, _ in plan.pool.hosts) if plan.shared else frozenset()


def hosts_with_any_port(workloads: Sequence[Workload]) -> frozenset[str]:
    """Return the hosts of jobs whose ranks reach each other on the hosts' own network."""
    several = (work for work in workloads if work.host_network and len(work.placements) > 1)
    return frozenset(placement.host.name for work in several for placement in work.placements)
