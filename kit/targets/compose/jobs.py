"""Containers of the queue's jobs: copied with other GPUs, renamed, ended and removed.

The controller and the commands of people act on them at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.queue.words import variables_of
from kit.targets.compose.containers import SINCE

SECRETS = "/run/secrets"
"""Where Compose copies the secrets that it has from its environment."""

ONE_OFF = "com.docker.compose.oneoff"
"""Compose's label on containers of `docker compose run`."""

Spec = Mapping[str, Any]
"""The answer of GET /containers/<id>/json."""


def remove(docker: Docker, container: str, **options: str) -> None:
    """Remove a container, unless another does it now or has done it."""
    try:
        docker.request("DELETE", f"/containers/{container}", None, None, v="1", **options)
    except EngineError as error:
        if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise


def rename(docker: Docker, container: str, name: str) -> None:
    """Rename a container, unless another has done it in the meantime."""
    try:
        docker.request("POST", f"/containers/{container}/rename", name=name)
    except EngineError:
        if docker.get(f"/containers/{container}/json")["Name"] != f"/{name}":
            raise


def stop(docker: Docker, container: str) -> None:
    """Stop a container and wait until it has ended, on a separate connection."""
    own = docker.again()
    with suppress(KitError):
        own.request("POST", f"/containers/{container}/stop")
    own.close()


def bound(spec: Spec, gpus: tuple[str, ...], now: float, waited: float) -> dict[str, Any]:
    """Return the request that creates a copy of a container, with these GPUs.

    Compose does not touch the copy, as it does not touch containers of `docker compose run`.
    """
    config, host = spec["Config"], spec["HostConfig"]
    variables = dict(each.partition("=")[::2] for each in config.get("Env") or ())
    variables |= variables_of(len(gpus), now, waited)
    request = next(iter(host["DeviceRequests"]), {"Driver": "nvidia", "Capabilities": [["gpu"]]})
    return {
        **{name: value for name, value in config.items() if name != "Hostname"},
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Labels": {**config["Labels"], SINCE: f"{now:.3f}", ONE_OFF: "True"},
        "HostConfig": {
            **host,
            "DeviceRequests": [{**request, "Count": 0, "DeviceIDs": list(gpus)}],
        },
    }


def copy_secrets(docker: Docker, source: str, target: str) -> None:
    """Copy the secrets that Compose has written into a container, if it has."""
    with suppress(EngineError):
        packed = docker.read(f"/containers/{source}/archive", path=SECRETS)
        headers = {"Content-Type": "application/x-tar"}
        docker.request("PUT", f"/containers/{target}/archive", packed, headers, path="/run")
