"""The proof that GPUs are where the plan put them: what containers see against what they got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.engine import ENDED, HostStatus, JobStatus
from kit.values import count


def wrong_gpus(statuses: Sequence[JobStatus]) -> tuple[str, ...]:
    """Say which containers see other GPUs than they were given, and which GPUs two of them see.

    What has not said yet what it sees is not judged.
    """
    living = [status for status in statuses if status.state not in ENDED]
    return (*_strange(living), *_shared(living))


def _strange(statuses: Sequence[JobStatus]) -> Iterator[str]:
    for status in statuses:
        for host in status.hosts:
            if host.state not in ENDED and host.seen and (said := _difference(host)):
                yield f"{status.job} on {host.host} {said}"


def _difference(host: HostStatus) -> str:
    given = host.devices
    if all(device.startswith(("GPU-", "MIG-")) for device in given):
        if {device.lower() for device in given} == {device.lower() for device in host.seen}:
            return ""
        return f"sees {', '.join(host.seen)}, it was given {', '.join(given)}"
    # By their indexes, or as all of a host's, GPUs have no names that could be compared.
    if "all" in given or len(given) == len(host.seen):
        return ""
    return f"sees {', '.join(host.seen)}, it was given {count(len(given), 'GPU')}"


def _shared(statuses: Sequence[JobStatus]) -> Iterator[str]:
    owners: dict[tuple[str, str], list[str]] = {}
    for status in statuses:
        for host in status.hosts:
            for uuid in host.seen if host.state not in ENDED else ():
                owners.setdefault((host.host, uuid), []).append(status.job)
    for (name, uuid), jobs in owners.items():
        if len(jobs) > 1:
            yield f"{uuid} on {name} is seen by {' and '.join(jobs)}"
