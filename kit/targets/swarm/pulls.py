"""Hosts that cannot get an image because its registry is unavailable for a moment.

A host's engine reports only that it has no such image: swarmkit logs the error of the pull, and
continues to create the container (moby, daemon/cluster/executor/container/controller.go, Prepare).
Each try uses up a restart. kit therefore asks the manager's engine whether the registry answers,
and when it does, starts tasks without restarts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.runtime.pulling import PAUSES, is_away
from kit.runtime.status import HostStatus, State
from kit.targets.swarm.observe import observe_cluster
from kit.targets.swarm.release import restart_tasks
from kit.targets.swarm.state import Cluster
from kit.targets.swarm.status import PULLING, USED_UP, host_statuses, missing_image

LONGEST = 120.0
"""Seconds for a registry to come back: the pauses of `kit.runtime.pulling`, and as much again for
connections that time out."""


@dataclass(frozen=True)
class Outage:
    """An unavailable registry, according to one image; times are those of the clock."""

    since: float
    reason: str = ""
    tries: int = 0
    next: float = 0.0


class Pulls:
    """Distinguishes outages of registries from missing images, while a deploy waits."""

    def __init__(self, manager: Docker, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager, self._clock = manager, clock
        self._outages: dict[str, Outage] = {}
        self._owed: set[tuple[str, str]] = set()
        """Jobs and images whose tasks have used up restarts in an outage."""

    def explain(self, cluster: Cluster, job: str) -> list[HostStatus]:
        """Return a job's hosts; those without an image wait while its registry is unavailable.

        Raises:
            KitError: Tasks without restarts could not be started again.
        """
        hosts = host_statuses(cluster, job)
        images = {image for host in hosts if (image := missing_image(host))}
        away = {image: outage for image in images if (outage := self._outage(image))}
        self._owed |= {(job, image) for image in away}
        if any(self._is_due(job, host, away) for host in hosts):
            self._owed -= {(job, image) for image in images - away.keys()}
            for stack in {service.stack for service in cluster.of(job)}:
                restart_tasks(self._manager, stack)
            hosts = host_statuses(observe_cluster(self._manager), job)
        return [self._waiting(host, away) for host in hosts]

    def _is_due(self, job: str, host: HostStatus, away: Collection[str]) -> bool:
        """Whether a host has used up its restarts in an outage that is over."""
        image = missing_image(host)
        owed = (job, image) in self._owed and image not in away
        return owed and host.message.endswith(USED_UP)

    def _waiting(self, host: HostStatus, away: Mapping[str, Outage]) -> HostStatus:
        outage = away.get(missing_image(host))
        if outage is None or self._clock() - outage.since > LONGEST:
            return host
        message = f"{PULLING} {missing_image(host)}: its registry does not answer ({outage.reason})"
        return replace(host, state=State.WAITING, message=message)

    def _outage(self, image: str) -> Outage | None:
        """Ask an image's registry, with growing pauses; return its outage, if any."""
        now, known = self._clock(), self._outages.get(image)
        if known and now < known.next:
            return known
        if reason := self._ask(image):
            known = known or Outage(now)
            pause = PAUSES[min(known.tries, len(PAUSES) - 1)]
            known = replace(known, reason=reason, tries=known.tries + 1, next=self._clock() + pause)
            self._outages[image] = known
            return known
        self._outages.pop(image, None)
        return None

    def _ask(self, image: str) -> str:
        try:
            self._manager.get(f"/distribution/{image}/json")
        except KitError as error:
            return error.message.rpartition(": ")[2] if is_away(error) else ""
        return ""
