"""The names of kit's objects in Swarm, and Swarm's limits for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import INVENTORY, Fault
from kit.model import Secret
from kit.plan.work import Plan
from kit.values import count
from kit.workload.types import Workload
from trainer.contract.bearer import KEY

LONGEST_SERVICE = 63
"""Swarm rejects longer service names, including the stack's name."""
LONGEST_CONFIG = 64
"""Swarm rejects longer names of configs and secrets."""


def key_name(cluster: str) -> str:
    """Return the name in Swarm of the secret with the cluster's key."""
    return f"{cluster}-{KEY}"


def network_name(plan: Plan) -> str:
    """Return the name of the overlay network of all workloads."""
    return f"{plan.cluster}-training"


def metrics_alias(port: int) -> str:
    """Return the name on the overlay of all containers with metrics at a port."""
    return f"kit-metrics-{port}"


def monitoring_stack(cluster: str) -> str:
    """Return the name of the stack of the monitoring."""
    return f"{cluster}-monitoring"


def monitoring_secret(cluster: str, secret: Secret) -> str:
    """Return the name in Swarm of a secret of the monitoring."""
    return f"{monitoring_stack(cluster)}-{secret.name}"


def checkpoints_alias(server: str) -> str:
    """Return the name on the overlay of all checkpoint endpoints of a server.

    A name for each group of hosts would change with every split, and restart an unchanged server.
    """
    return f"{server}-checkpoints"


def name_faults(plan: Plan, workloads: Sequence[Workload]) -> Iterator[Fault]:
    """Reject names that Swarm would reject at the deploy."""
    for workload in workloads:
        for kind, name, most, whose in _names(workload):
            if len(name) > most:
                what = f"{name} is too long a name for a Swarm {kind} (at most {most})"
                over = count(len(name) - most, "letter")
                yield Fault(workload.name, (), what, f"shorten {whose} by {over}")
    service = "-platform_network" if plan.data is None else "-platform_data-storage"
    most = LONGEST_SERVICE - len(service)
    in_names = plan.network.driver == "overlay" or plan.data is not None
    if in_names and len(plan.cluster) > most:
        what = f"{plan.cluster} is too long: <cluster>{service} is a Swarm service"
        yield Fault(INVENTORY, ("cluster",), what, f"write at most {most} letters")
    most = LONGEST_CONFIG - len("-monitoring-board-cluster-") - 8
    if plan.monitoring is not None and len(plan.cluster) > most:
        what = f"{plan.cluster} is too long: Swarm's configs of the monitoring begin with it"
        yield Fault(INVENTORY, ("cluster",), what, f"write at most {most} letters")


def _names(workload: Workload) -> Iterator[tuple[str, str, int, str]]:
    """Yield the names of a stack: kind, longest name, its limit, and the words for its origin."""
    whose = f"the {workload.kind}'s"
    longest = max((part.name for part in workload.parts), key=len, default="")
    yield "service", f"{workload.stack}_{longest}", LONGEST_SERVICE, f"{whose} or the host's name"
    yield "config", f"{workload.stack}-launcher-{'0' * 8}", LONGEST_CONFIG, f"{whose} name"
    secrets = [f"{workload.stack}-{secret.name}-{'0' * 8}" for secret in workload.secrets]
    longest = max(secrets, key=len, default="")
    yield "secret", longest, LONGEST_CONFIG, f"{whose} or the secret's name"


def variable(name: str) -> str:
    """Return the variable that selects a secret's value in a stack's file."""
    return f"KIT_SECRET_{name}"


def secret_name(work: Workload, name: str, fingerprint: str) -> str:
    """Return the name of a secret in Swarm, as in the rendered stack."""
    return f"{work.stack}-{name}-{fingerprint}"
