"""The GPUs that are visible in the containers of custom servers, from nvidia-smi in them.

Containers of the trainer's image report their GPUs themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kit.errors import KitError
from kit.hosts.docker import Docker, concurrently
from kit.hosts.gpus import listed_gpus
from kit.runtime.status import HostStatus, JobStatus

Seen = tuple[str, ...]


def visible_gpus(docker: Docker, container: str) -> Seen:
    """Return the UUIDs of the GPUs in a container, by its ID.

    NVIDIA's runtime mounts nvidia-smi into any image.

    Raises:
        KitError: The engine cannot be reached, or the program finds no GPU.
    """
    what = "nvidia-smi in the container"
    return tuple(listed_gpus(docker.command(what, "exec", container, "nvidia-smi", "-L")))


def with_seen(status: JobStatus, asks: Mapping[str, Callable[[], Seen]]) -> JobStatus:
    """Return a status with the GPUs of hosts that have a container to ask."""
    answers = dict(zip(asks, concurrently(lambda ask: ask(), asks.values()), strict=True))
    hosts = tuple(_with_answer(host, answers.get(host.host)) for host in status.hosts)
    return replace(status, hosts=hosts)


def _with_answer(host: HostStatus, answer: Seen | KitError | None) -> HostStatus:
    if isinstance(answer, KitError):
        messages = [host.message, f"its GPUs are not proved: {answer.message}"]
        return replace(host, message="; ".join(filter(None, messages)))
    return replace(host, seen=answer) if answer else host
