"""The files of NCCL's flight recorder on a job's hosts, which explain a hang."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from kit.errors import KitError
from kit.hosts.docker import Docker, EngineError, on_each
from kit.model import Host

NOT_FOUND = 404
FOLDER = "/dumps"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Dump:
    """A file of the flight recorder; `time` is its modification, in seconds since the epoch."""

    host: str
    name: str
    time: float
    content: bytes


def dumps(hosts: Iterable[Host], volume: str) -> tuple[tuple[Dump, ...], tuple[KitError, ...]]:
    """Return the files in the volume of each host, and the errors of unreachable hosts.

    If several files have one name, because a rank moved to another host, return the newest.
    """
    answers = on_each(hosts, lambda host: _of_host(host, volume)).values()
    errors = tuple(answer for answer in answers if isinstance(answer, KitError))
    found = [dump for answer in answers if not isinstance(answer, KitError) for dump in answer]
    newest = {dump.name: dump for dump in sorted(found, key=lambda dump: dump.time)}
    return tuple(newest[name] for name in sorted(newest)), errors


def _of_host(host: Host, volume: str) -> tuple[Dump, ...]:
    with closing(Docker.of(host)) as docker:
        try:
            docker.get(f"/volumes/{volume}")
        except EngineError as error:
            if error.status == NOT_FOUND:
                return ()
            raise
        return tuple(unpacked(host.name, _packed(docker, volume)))


def _packed(docker: Docker, volume: str) -> bytes:
    """Return a volume's content as tar, through a container of any image that never runs."""
    images = docker.get("/images/json")
    if not images:
        raise KitError(
            f"{docker.name}: it has no image, which kit needs to read the volume {volume}"
        )
    mount = {"Type": "volume", "Source": volume, "Target": FOLDER, "ReadOnly": True}
    body = {"Image": images[0]["Id"], "Cmd": ["none"], "HostConfig": {"Mounts": [mount]}}
    made = docker.post("/containers/create", body)["Id"]
    try:
        return docker.read(f"/containers/{made}/archive", path=f"{FOLDER}/.")
    finally:
        docker.request("DELETE", f"/containers/{made}", None, None, force="1")


def unpacked(host: str, packed: bytes) -> Iterator[Dump]:
    """Yield the plain files of a tar archive with untrusted content."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            content = tar.extractfile(member) if member.isreg() and NAME.fullmatch(name) else None
            if content is not None:
                yield Dump(host, name, member.mtime, content.read())
