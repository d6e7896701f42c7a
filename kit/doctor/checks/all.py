"""All passive checks in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.doctor.checks import docker, gpus, network, services, swarm, system
from kit.doctor.facts import Report, Wanted
from kit.doctor.findings import Finding

ON_EACH = (system.check, docker.check, gpus.check, network.check, services.check)
ON_ALL = (system.names, docker.versions, docker.images, swarm.check)


def check_all(reports: Sequence[Report], wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on the hosts that have answered."""
    for report in reports:
        want = wanted.of(report.host)
        for one in ON_EACH:
            yield from one(report, want, wanted)
    for every in ON_ALL:
        yield from every(reports, wanted)
