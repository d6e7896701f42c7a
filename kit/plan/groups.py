"""Swarm services: equal hosts become one, a host that is split gets its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kit.model import Host
from kit.plan.types import Placement, Service
from kit.plan.work import Work

HOST_LABEL = "kit.host"
JOB_LABEL = "kit.job."


def job_label(name: str) -> str:
    """Return the node label that says which service of a job, or of a server, a host belongs to."""
    return f"{JOB_LABEL}{name}"


def services(name: str, verb: str, placements: Iterable[Placement]) -> tuple[Service, ...]:
    """Group placements into services, in the order in which the inventory first needs them.

    `name` is the job's or the server's; the services' names begin with the `verb`.

    Hosts whose GPUs are all the job's, or are known by index alone, share a service with those that
    have as many; a host whose GPUs are pinned by UUID cannot share.
    """
    groups: dict[str, list[Placement]] = {}
    for placement in placements:
        groups.setdefault(_name(verb, placement), []).append(placement)
    return tuple(_service(name, service, members) for service, members in groups.items())


def _name(verb: str, placement: Placement) -> str:
    if placement.whole:
        name = f"{verb}-{placement.processes}gpu"
    elif placement.by_index:
        name = f"{verb}-gpu" + "-".join(placement.devices)
    else:
        return f"{verb}-on-{placement.host.name}"
    own = placement.host.interface
    return f"{name}-{re.sub('[^a-zA-Z0-9]+', '-', own).strip('-')}" if own else name


def _service(name: str, service: str, members: list[Placement]) -> Service:
    first = members[0]
    return Service(
        name=service,
        hosts=tuple(member.host.name for member in members),
        processes=first.processes,
        visible_devices="all" if first.whole else ",".join(first.devices),
        constraint=f"node.labels.{job_label(name)} == {service}",
        interface=first.interface,
    )


def node_labels(
    hosts: Sequence[Host], work: Sequence[Work]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the labels of each host's node, which the services' constraints name.

    A host that has no part in one is told so (`none`): a label of an older deploy is overwritten.
    """
    places = [
        {host: service.name for service in each.services for host in service.hosts} for each in work
    ]
    return {
        host.name: (
            (HOST_LABEL, host.name),
            *(
                (job_label(each.name), place.get(host.name, "none"))
                for each, place in zip(work, places, strict=True)
            ),
        )
        for host in hosts
    }


def advertised(host: Host) -> tuple[str, ...]:
    """Name each of a host's GPUs as its daemon.json offers it to Swarm.

    A bare index would be read as a count (moby's genericresource.ParseCmd).
    """
    return tuple(gpu.id if gpu.known else f"gpu{gpu.id}" for gpu in host.gpus)
