"""The stack of the monitoring. Pure.

The rest of the platform must not change while jobs run; dashboards, rules and retention change
often. Grafana's password is an external secret with a fixed name, so that people can deploy the
stack by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from kit.plan.work import Plan
from kit.targets.lowered import Output, monitoring_outputs, volumes_of
from kit.targets.swarm.labels import HOST_LABEL
from kit.targets.swarm.names import monitoring_secret, monitoring_stack
from kit.targets.swarm.stacks import Stack, networks_of, pinned_to, service_of
from kit.workload.monitoring import Monitoring, platform_parts
from kit.workload.types import Part

MONITORING = "monitoring.stack.yaml"


def monitoring_files(plan: Plan, services: Monitoring) -> Iterator[Output]:
    """Yield the files of the monitoring: what Prometheus and Grafana read, and the stack."""
    yield from monitoring_outputs(services.scrapes, services.alertmanager, services.logs)
    parts = platform_parts(services)
    stack = Stack(
        name=monitoring_stack(plan.cluster),
        labels=(),
        services=tuple(service_of(plan, part, _constraints(plan, part)) for part in parts),
        networks=networks_of(plan, parts),
        secrets=tuple(
            (each.name, monitoring_secret(plan.cluster, each)) for each in services.grafana.secrets
        ),
        volumes=volumes_of(plan.cluster, parts),
        after_platform=plan.network.driver == "overlay",
    )
    yield Output(
        MONITORING,
        f"{MONITORING}.j2",
        {"stack": stack, "home": services.host.name, "cluster": plan.cluster},
        configs=tuple(config for part in parts for config in part.configs),
        stack=stack.name,
    )


def _constraints(plan: Plan, part: Part) -> list[str]:
    """Return where a part runs: at home, on every host, or on those with GPUs."""
    if not part.everywhere:
        return [pinned_to(part)]
    if not part.all_gpus:
        return []
    return [f"node.labels.{HOST_LABEL} != {host.name}" for host in plan.hosts if not host.gpus]
