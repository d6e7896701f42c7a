"""The files of NCCL's flight recorder on a job's hosts, which explain a hang."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from kit.errors import KitError
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.runtime.volumes import read_mount

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
    files = [dump for answer in answers if not isinstance(answer, KitError) for dump in answer]
    newest = {dump.name: dump for dump in sorted(files, key=lambda dump: dump.time)}
    return tuple(newest[name] for name in sorted(newest)), errors


def _of_host(host: Host, volume: str) -> tuple[Dump, ...]:
    with closing(Docker.of(host)) as docker:
        packed = read_mount(docker, "volume", volume)
    return tuple(unpacked(host.name, packed)) if packed else ()


def unpacked(host: str, packed: bytes) -> Iterator[Dump]:
    """Yield the plain files of a tar archive with untrusted content."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            content = tar.extractfile(member) if member.isreg() and NAME.fullmatch(name) else None
            if content is not None:
                yield Dump(host, name, member.mtime, content.read())
