"""Queries of a host: its state before a deploy, and its containers of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kit.hosts import ssh
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.hosts.gpus import listed_gpus
from kit.model import Host
from kit.plan.storage import CHECKPOINTS
from kit.runtime.streams import seconds
from kit.runtime.volumes import has_image, has_volume
from kit.targets.compose.containers import (
    CLUSTER,
    PROJECT,
    SERVICE,
    SINCE,
    VERSION,
    Container,
    HostState,
    owner,
)
from kit.workload.types import Kind

LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""

QUERY_SCRIPT = """
nvidia-smi -L 2>/dev/null
PATH="$PATH:/usr/local/bin:/usr/bin:/bin" command -v nvidia-container-runtime-hook
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
true
"""
"""Data that Docker's API lacks: the driver's GPUs, NVIDIA's hook, the ports in use."""


def observe_host(
    host: Host, docker: Docker, images: Iterable[str], volumes: Iterable[str], data: str
) -> HostState:
    """Return the state of a host.

    `images` and `volumes` are names to look for, `data` is the project of the data services.

    Raises:
        KitError: It cannot be reached over SSH or by Docker.
    """
    printed = ssh.run(host, QUERY_SCRIPT)
    return HostState(
        gpus=tuple(listed_gpus(printed)),
        hook="nvidia-container-runtime-hook" in printed,
        ports=ports(printed),
        containers=containers(docker),
        images=frozenset(name for name in images if has_image(docker, name)),
        volumes=frozenset(name for name in volumes if has_volume(docker, name)),
        data=containers_of(docker, data),
    )


def ports(tables: str) -> frozenset[int]:
    """Return the listening ports in /proc/net/tcp and tcp6."""
    row = rf"^ *\d+: [0-9A-F]+:([0-9A-F]{{4}}) \S+ {LISTENING} "
    return frozenset(int(port, 16) for port in re.findall(row, tables, re.MULTILINE))


def containers(docker: Docker, cluster: str | None = None) -> tuple[Container, ...]:
    """Return the containers of jobs on a host: one cluster's Compose projects, or all.

    Raises:
        KitError: The engine cannot be reached.
    """
    wanted = {"label": [f"{CLUSTER}={cluster}"]} if cluster else {}
    observed = []
    for listed in docker.get("/containers/json", all="1", filters=wanted):
        if owner(listed["Labels"]) is not None:
            # It may have been removed in the meantime.
            with suppress(EngineError):
                inspected = docker.get(f"/containers/{listed['Id']}/json")
                observed.append(container(docker.name, inspected))
    return tuple(observed)


def containers_of(docker: Docker, project: str) -> tuple[Container, ...]:
    """Return the containers of a project that belongs to no job."""
    wanted = {"label": [f"{PROJECT}={project}"]}
    listed = docker.get("/containers/json", all="1", filters=wanted)
    return tuple(
        container(docker.name, docker.get(f"/containers/{one['Id']}/json")) for one in listed
    )


def container(host: str, inspected: dict[str, Any]) -> Container:
    """Parse the answer of GET /containers/<id>/json for a container of a job."""
    config, state, limits = inspected["Config"], inspected["State"], inspected["HostConfig"]
    labels = config["Labels"] or {}
    kind, name = owner(labels) or (Kind.JOB, "")
    environment = dict(line.partition("=")[::2] for line in config["Env"] or [])
    least, _, most = environment.get("KIT_NNODES", "1:1").partition(":")
    folder = environment.get("KIT_CHECKPOINTS") or CHECKPOINTS
    return Container(
        id=inspected["Id"],
        host=host,
        job=name,
        kind=kind,
        cluster=labels.get(CLUSTER, ""),
        service=labels.get(SERVICE, ""),
        version=labels.get(VERSION, ""),
        status=state["Status"],
        exit_status=state["ExitCode"],
        error=state.get("Error", ""),
        healthy=(state.get("Health") or {}).get("Status") != "unhealthy",
        created=seconds(inspected["Created"]),
        ended=seconds(state["FinishedAt"]),
        restarts=inspected["RestartCount"],
        most_restarts=limits["RestartPolicy"]["MaximumRetryCount"],
        devices=_devices(limits.get("DeviceRequests") or [], environment),
        processes=int(environment.get("KIT_NPROC") or environment.get("KIT_REPLICAS") or "0"),
        spare=bool(environment.get("KIT_SPARE")),
        dispensable=int(most) - int(least),
        checkpoints=_source(inspected["Mounts"], folder),
        image=config.get("Image", ""),
        coordinated="KIT_RENDEZVOUS" in environment,
        name=inspected.get("Name", "").removeprefix("/"),
        labels=labels,
        since=float(labels[SINCE]) if SINCE in labels else None,
        spec=inspected,
    )


def _devices(requests: list[dict[str, Any]], environment: dict[str, str]) -> tuple[str, ...]:
    if requests:
        named = tuple(device for one in requests for device in one["DeviceIDs"] or [])
        return named or ("all",)
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "void")
    return () if visible in {"", "void", "none"} else tuple(visible.split(","))


def _source(mounts: list[dict[str, Any]], folder: str) -> str:
    """Return the volume or the host's folder that is mounted at a folder."""
    matching = next((mount for mount in mounts if mount["Destination"] == folder), {})
    return str(matching.get("Name") or matching.get("Source") or folder)
