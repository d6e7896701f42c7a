"""What a host looks like before a job is started on it, and the containers of jobs there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from kit import ssh
from kit.docker import Docker, EngineError
from kit.engine.compose_decide import Seen
from kit.engine.containers import CLUSTER, Container, container, job_of
from kit.engine.devices import listed_gpus
from kit.model import Host

NOT_FOUND = 404
LISTENING = "0A"
"""State of a socket in /proc/net/tcp (include/net/tcp_states.h)."""

LOOK = """
nvidia-smi -L 2>/dev/null
PATH="$PATH:/usr/local/bin:/usr/bin:/bin" command -v nvidia-container-runtime-hook
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
true
"""
"""What Docker's API does not tell: the driver's GPUs, its hook, the ports that are taken."""


def look(host: Host, docker: Docker, images: Iterable[str], volumes: Iterable[str]) -> Seen:
    """Return what a host looks like; `images` and `volumes` are names to look for.

    Raises:
        KitError: It cannot be reached, by SSH or Docker's way.
    """
    printed = ssh.run(host, LOOK)
    return Seen(
        gpus=tuple(listed_gpus(printed)),
        hook="nvidia-container-runtime-hook" in printed,
        ports=ports(printed),
        containers=containers(docker),
        images=frozenset(name for name in images if _there(docker, f"/images/{name}/json")),
        volumes=frozenset(name for name in volumes if _there(docker, f"/volumes/{name}")),
    )


def ports(tables: str) -> frozenset[int]:
    """Return the ports that are listened on, from /proc/net/tcp and tcp6."""
    row = rf"^ *\d+: [0-9A-F]+:([0-9A-F]{{4}}) \S+ {LISTENING} "
    return frozenset(int(port, 16) for port in re.findall(row, tables, re.MULTILINE))


def containers(docker: Docker, cluster: str | None = None) -> tuple[Container, ...]:
    """Return the containers of jobs on a host, of one cluster's Compose projects or of all.

    Raises:
        KitError: The engine cannot be reached.
    """
    wanted = {"label": [f"{CLUSTER}={cluster}"]} if cluster else {}
    found = []
    for listed in docker.get("/containers/json", all="1", filters=wanted):
        if job_of(listed["Labels"]) is not None:
            # It may have gone in the meantime.
            with suppress(EngineError):
                inspected = docker.get(f"/containers/{listed['Id']}/json")
                found.append(container(docker.name, inspected))
    return tuple(found)


def _there(docker: Docker, path: str) -> bool:
    try:
        docker.get(path)
    except EngineError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True
