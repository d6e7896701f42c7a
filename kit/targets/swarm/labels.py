"""Node labels: the names by which placement constraints choose hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kit.model import Host
from kit.workload.types import Workload

HOST_LABEL = "kit.host"
JOB_LABEL = "kit.job."
NOWHERE = "none"
"""The value of a workload's label on a host that has no part in it; no label says the same."""


def job_label(name: str) -> str:
    """Return the node label that says which service of a job, or of a server, a host belongs to."""
    return f"{JOB_LABEL}{name}"


def constraint(name: str, service: str) -> str:
    """Return the placement constraint of a service of a job or a server."""
    return f"node.labels.{job_label(name)} == {service}"


def places(workload: Workload) -> dict[str, str]:
    """Return which service each host belongs to."""
    return {host.name: part.name for part in workload.working for host in part.hosts}


def node_labels(
    hosts: Sequence[Host], workloads: Sequence[Workload]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the labels of each host's node, which the services' constraints name.

    A host that has no part in one is told so (`none`): a label of an older deploy is overwritten.
    """
    found = [(job_label(each.name), places(each)) for each in workloads]
    return {
        host.name: (
            (HOST_LABEL, host.name),
            *((label, place.get(host.name, NOWHERE)) for label, place in found),
        )
        for host in hosts
    }
