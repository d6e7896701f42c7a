"""Node labels, by which placement constraints choose hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kit.model import Host
from kit.workload.types import Workload

HOST_LABEL = "kit.host"
JOB_LABEL = "kit.job."
NOWHERE = "none"
"""The label's value on a host without a part in the workload. A missing label means the same."""


def job_label(name: str) -> str:
    """Return the node label with the host's service of a job or a server."""
    return f"{JOB_LABEL}{name}"


def constraint(name: str, service: str) -> str:
    """Return the placement constraint of a service of a job or a server."""
    return f"node.labels.{job_label(name)} == {service}"


def places(workload: Workload) -> dict[str, str]:
    """Return the service of each host."""
    return {host.name: part.name for part in workload.working for host in part.hosts}


def node_labels(
    hosts: Sequence[Host], workloads: Sequence[Workload]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the labels of each host's node, for the services' constraints.

    A host without a part in a workload gets the value `none`, which overwrites older labels.
    """
    found = [(job_label(each.name), places(each)) for each in workloads]
    return {
        host.name: (
            (HOST_LABEL, host.name),
            *((label, place.get(host.name, NOWHERE)) for label, place in found),
        )
        for host in hosts
    }
