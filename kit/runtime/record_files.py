"""The files of the trainer's records on the hosts (trainer/record/files.py), unchanged."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kit.errors import KitError
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.runtime.volumes import read_mount

FOLDER = "records"
"""Beside the checkpoints."""
LARGEST = 64 * 2**20
"""Bytes of a file; a record has less than one MiB for each rank."""
_PATH = re.compile(
    r"(?P<run>[A-Za-z0-9_][A-Za-z0-9_-]*)/(?P<name>rank\d{1,6}\.jsonl|evaluation\.json)"
)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of a run's record on one host."""

    host: str
    run: str
    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The files of a job's records on all hosts, and the errors of unreachable hosts."""

    files: tuple[RecordFile, ...]
    errors: tuple[KitError, ...] = ()


def from_hosts(hosts: Iterable[Host], kind: str, source: str) -> FoundRecords:
    """Read the records in the volume or the folder with a job's checkpoints on each host."""

    def read(host: Host) -> tuple[RecordFile, ...]:
        with closing(Docker.of(host)) as docker:
            packed = read_mount(docker, kind, source, f"{FOLDER}/")
        return tuple(unpacked(host.name, packed)) if packed else ()

    answers = on_each(hosts, read).values()
    errors = tuple(answer for answer in answers if isinstance(answer, KitError))
    files = [each for answer in answers if not isinstance(answer, KitError) for each in answer]
    return FoundRecords(tuple(files), errors)


def unpacked(host: str, packed: bytes) -> Iterator[RecordFile]:
    """Yield the files of a tar archive, which may be compressed, with untrusted content."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            match = _PATH.fullmatch(member.name.removeprefix("./"))
            content = tar.extractfile(member) if match and member.isreg() else None
            if match and content is not None and member.size <= LARGEST:
                yield RecordFile(host, match["run"], match["name"], content.read())


def from_folder(host: str, checkpoints: Path) -> Iterator[RecordFile]:
    """Yield the records beside a host's checkpoints on this machine."""
    for path in sorted((checkpoints / FOLDER).glob("*/*")):
        match = _PATH.fullmatch(f"{path.parent.name}/{path.name}")
        if match and path.is_file() and path.stat().st_size <= LARGEST:
            yield RecordFile(host, match["run"], match["name"], path.read_bytes())
