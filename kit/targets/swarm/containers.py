"""The containers of services on a host: its own engine knows them, the managers do not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from kit.hosts.docker import Docker
from kit.model import Host
from kit.runtime.access import Access, no_container
from kit.runtime.seen import visible_gpus

SERVICE_LABEL = "com.docker.swarm.service.name"
"""Docker's label on the containers of a service."""
POLL = 0.2
"""Seconds between two checks of containers that end."""


def seen_on(host: Host, services: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs that the container of one of these services sees."""
    with closing(Docker.of(host)) as docker:
        for one in _running(docker, services):
            return visible_gpus(docker, one["Id"])
    return ()


def release_on(host: Host, services: Iterable[str]) -> None:
    """Signal the containers: a host that is left out takes part again."""
    with closing(Docker.of(host)) as docker:
        for one in _running(docker, services):
            docker.request("POST", f"/containers/{one['Id']}/kill", signal="SIGUSR1")


def end_on(host: Host, services: Iterable[str], seconds: float) -> bool:
    """End the containers of these services now; return whether they ended within `seconds`.

    Swarm alone would take 3 s longer: it first waits for its load balancers (moby, daemon/cluster/
    executor/container/controller.go, `defaultGossipConvergeDelay`).
    """
    deadline = time.monotonic() + seconds
    with closing(Docker.of(host)) as docker:
        for one in _running(docker, services):
            docker.request("POST", f"/containers/{one['Id']}/kill", signal="SIGTERM")
        while left := list(_running(docker, services)):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL)
    return not left


def access_on(host: Host, services: Iterable[str], name: str) -> Access:
    """Return the access to the container of one of these services of the workload `name`.

    Raises:
        KitError: None runs.
    """
    with closing(Docker.of(host)) as docker:
        for one in _running(docker, services):
            return Access(("docker", *docker.options), one["Id"])
    raise no_container(name, host.name)


def _running(docker: Docker, services: Iterable[str]) -> Iterator[dict[str, Any]]:
    for service in services:
        yield from docker.get("/containers/json", filters={"label": [f"{SERVICE_LABEL}={service}"]})
