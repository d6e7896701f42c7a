"""Swarm services: equal hosts become one, a host that is split gets its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kit.model import Host
from kit.plan.types import JobPlan, Placement, Service

HOST_LABEL = "kit.host"
JOB_LABEL = "kit.job."


def job_label(job: str) -> str:
    """Return the node label that says which of a job's services a host belongs to."""
    return f"{JOB_LABEL}{job}"


def services(job: str, placements: Iterable[Placement]) -> tuple[Service, ...]:
    """Group placements into services, in the order in which the inventory first needs them.

    Hosts whose GPUs are all the job's, or are known by index alone, share a service with those that
    have as many; a host whose GPUs are pinned by UUID cannot share.
    """
    groups: dict[str, list[Placement]] = {}
    for placement in placements:
        groups.setdefault(_name(placement), []).append(placement)
    return tuple(_service(job, name, members) for name, members in groups.items())


def _name(placement: Placement) -> str:
    if placement.whole:
        name = f"train-{placement.processes}gpu"
    elif placement.by_index:
        name = "train-gpu" + "-".join(placement.devices)
    else:
        return f"train-on-{placement.host.name}"
    own = placement.host.interface
    return f"{name}-{re.sub('[^a-zA-Z0-9]+', '-', own).strip('-')}" if own else name


def _service(job: str, name: str, members: list[Placement]) -> Service:
    first = members[0]
    return Service(
        name=name,
        hosts=tuple(member.host.name for member in members),
        processes=first.processes,
        visible_devices="all" if first.whole else ",".join(first.devices),
        constraint=f"node.labels.{job_label(job)} == {name}",
        interface=first.interface,
    )


def node_labels(
    hosts: Sequence[Host], jobs: Sequence[JobPlan]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the labels of each host's node, which the services' constraints name.

    A host that has no part in a job is told so (`none`): a label of an older deploy is overwritten.
    """
    places = [
        {host: service.name for service in job.services for host in service.hosts} for job in jobs
    ]
    return {
        host.name: (
            (HOST_LABEL, host.name),
            *(
                (job_label(job.name), place.get(host.name, "none"))
                for job, place in zip(jobs, places, strict=True)
            ),
        )
        for host in hosts
    }


def advertised(host: Host) -> tuple[str, ...]:
    """Name each of a host's GPUs as its daemon.json offers it to Swarm.

    A bare index would be read as a count (moby's genericresource.ParseCmd).
    """
    return tuple(gpu.id if gpu.known else f"gpu{gpu.id}" for gpu in host.gpus)
