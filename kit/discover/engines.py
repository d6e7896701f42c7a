"""Programs that answer in place of the host's Docker Engine: Podman and others. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

OWN = re.compile(r"unix:///(var/)?run/|tcp://(localhost|127\.|\[::1\])")
"""The beginning of the endpoint of an engine that is a service of the host."""


class StandIn(StrEnum):
    """A program behind the docker command. Only the host's own engine has its GPUs and network."""

    PODMAN = "Podman"
    NERDCTL = "nerdctl"
    DESKTOP = "Docker Desktop"
    ROOTLESS = "rootless Docker"
    SNAP = "Docker from snap"
    ELSEWHERE = "another engine"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a stand-in lacks, and how the host gets its own engine; `{host}` is its name."""

    what: str
    run: str


_PREPARE = "kit host prepare --run --install-docker {host}"
REMEDIES: Mapping[StandIn, Remedy] = {
    StandIn.PODMAN: Remedy(
        "the docker command there is Podman (podman-docker), which has neither Swarm nor "
        "NVIDIA's runtime",
        f"remove the package podman-docker there, then {_PREPARE}",
    ),
    StandIn.NERDCTL: Remedy(
        "the docker command there is nerdctl, which has no Docker Engine behind it",
        f"remove its link or alias `docker` there, then {_PREPARE}",
    ),
    StandIn.DESKTOP: Remedy(
        "Docker Desktop runs containers in a virtual machine, which has neither the host's GPUs "
        "nor its network",
        "there: systemctl --user disable --now docker-desktop; docker context use default; then "
        f"{_PREPARE}",
    ),
    StandIn.ROOTLESS: Remedy(
        "Docker runs rootless there, as a service of the login: it has neither Swarm's networks "
        "nor the host's, and does not read /etc/docker/daemon.json",
        "there: systemctl --user disable --now docker; docker context use default; take "
        f"DOCKER_HOST out of the login's files; then {_PREPARE}",
    ),
    StandIn.SNAP: Remedy(
        "Docker is a snap there: it sees neither the installed NVIDIA toolkit nor folders outside "
        "of home directories",
        f"there: sudo snap remove docker (its images and volumes go); then {_PREPARE}",
    ),
    StandIn.ELSEWHERE: Remedy(
        "docker there uses an engine that is not the host's own (a context or DOCKER_HOST)",
        "there: docker context use default; take DOCKER_HOST out of the login's files",
    ),
}


def stand_in(
    version: str, version_json: Mapping[str, Any], info_json: Mapping[str, Any], program: str
) -> StandIn | None:
    """Return the program that answers in place of the host's own engine, or None.

    `version_json` and `info_json` are `docker version` and `docker info` as JSON. `program` has a
    line for each of: the docker command, the endpoint of its context, sockets and commands of
    other programs.
    """
    client, server = version_json.get("Client") or {}, version_json.get("Server") or {}
    names = {str(each.get("Name")) for each in server.get("Components") or ()}
    places = program.split()
    endpoint = next((each for each in places if "://" in each), "")
    if (
        "using podman" in version
        or "Podman Engine" in names
        or ("APIVersion" in client and "ApiVersion" not in client)
    ):
        return StandIn.PODMAN
    if server and "Version" not in server:
        return StandIn.NERDCTL
    platform = str((server.get("Platform") or {}).get("Name", ""))
    desktop = f"{platform} {info_json.get('OperatingSystem', '')} {endpoint}"
    if "Docker Desktop" in desktop or "/.docker/desktop/" in desktop:
        return StandIn.DESKTOP
    options = info_json.get("SecurityOptions") or ()
    silent = not server and "permission denied" not in version
    own_socket = any(each.startswith("/run/user/") for each in places)
    if (
        any("name=rootless" in str(each) for each in options)
        or endpoint.startswith("unix:///run/user/")
        or (silent and own_socket)
    ):
        return StandIn.ROOTLESS
    root = str(info_json.get("DockerRootDir", ""))
    command = next((each for each in places if each.startswith("/")), "")
    if root.startswith("/var/snap/") or command.startswith("/snap/"):
        return StandIn.SNAP
    return StandIn.ELSEWHERE if endpoint and not OWN.match(endpoint) else None
