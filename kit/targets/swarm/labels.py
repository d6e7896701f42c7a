"""Node labels, by which placement constraints choose hosts. Pure.

Each workload has a label on each host, also with pinned services: the line of label-nodes.sh that
gives a host its new place removes the old one. The number of GPUs as a label would not suffice for
jobs that name their hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kit.model import Host
from kit.plan.data import DataPlan
from kit.workload.types import Workload

HOST_LABEL = "kit.host"
JOB_LABEL = "kit.job."
DATA_LABEL = "kit.data"
"""The label with a host's data service: `storage` or `agent`. The agents are a global service, and
nodes that the inventory does not name, and hosts without GPUs, must not fetch."""
NOWHERE = "none"
"""The label's value on a host without a part in the workload. A missing label means the same."""


CLAIMED = "kit.claimed"
"""The label of a node with the time of a deploy, and with the GPUs of the queue that it wants."""


def job_label(name: str) -> str:
    """Return the node label with the host's service of a job or a server."""
    return f"{JOB_LABEL}{name}"


def constraint(name: str, service: str) -> str:
    """Return the placement constraint of a service of a job or a server."""
    return f"node.labels.{job_label(name)} == {service}"


def data_constraint(service: str) -> str:
    """Return the placement constraint of a data service: `storage` or `agent`."""
    return f"node.labels.{DATA_LABEL} == {service}"


def data_labels(data: DataPlan, hosts: Iterable[str]) -> dict[str, str]:
    """Return the label of each host's data service."""
    agents = {host.name for host in data.agents}
    labels = {host: "agent" if host in agents else NOWHERE for host in hosts}
    return labels | {data.storage.name: "storage"}


def places(workload: Workload) -> dict[str, str]:
    """Return the service of each host."""
    return {host.name: part.name for part in workload.working for host in part.hosts}


def node_labels(
    hosts: Sequence[Host], workloads: Sequence[Workload], data: DataPlan | None = None
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the labels of each host's node, for the services' constraints.

    A host without a part in a workload gets the value `none`, which overwrites older labels.
    """
    serving = data_labels(data, (host.name for host in hosts)) if data else {}
    by_label = [(job_label(each.name), places(each)) for each in workloads]
    return {
        host.name: (
            (HOST_LABEL, host.name),
            *(((DATA_LABEL, serving[host.name]),) if serving else ()),
            *((label, place.get(host.name, NOWHERE)) for label, place in by_label),
        )
        for host in hosts
    }
