"""Versions, and their order."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.launcher.keeper.output import KeeperError


class Term(NamedTuple):
    """The time from one meeting to the next, as in Raft; 0 is the time before the first.

    Two terms have the same number only if no host took part in both. Then only `began`, by the
    clocks of their leaders, shows which is newer.
    """

    number: int = 0
    began: float = 0.0
    leader: str = ""


@dataclass(frozen=True)
class Content:
    """A file of a version; its path is as in the job."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Version:
    """The files at `time` on the host `host`, which has the group rank `rank`.

    `count` counts the versions of a host in a term.
    """

    term: Term
    rank: int
    count: int
    host: str
    time: float
    files: tuple[Content, ...]

    @property
    def order(self) -> tuple[Term, int, int, str]:
        """The key for sorting: the newest is the greatest; the lowest rank of writers wins."""
        return (self.term, -self.rank, self.count, self.host)

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.term.number}.{self.count} of {self.host}"

    @property
    def id(self) -> str:
        """The name of its folder, which depends on the content."""
        return f"{self.term.number:06d}.{self.count:06d}-{self.host}-{self.content}"

    @property
    def content(self) -> str:
        """A name that is equal for equal content."""
        sums = "".join(each.sha256 for each in self.files)
        return hashlib.sha256(sums.encode()).hexdigest()[:8]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.files)

    def shown(self) -> str:
        """Describe it for people."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.time))
        return f"version {self.name} ({self.size / 1e6:.1f} MB, written {when} UTC)"


def read_version(text: str | bytes, paths: Sequence[str]) -> Version:
    """Read a version from JSON, from this host's disk or from another host.

    Raises KeeperError if it is invalid, or has a file that is not one of `paths`: another host must
    not choose where this one writes.
    """
    try:
        found = json.loads(text)
        files = tuple(
            Content(str(each["path"]), int(each["size"]), str(each["sha256"]))
            for each in found["files"]
        )
        number, began, leader = found["term"]
        version = Version(
            Term(int(number), float(began), str(leader)),
            int(found["rank"]),
            int(found["count"]),
            str(found["host"]),
            float(found["time"]),
            files,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise KeeperError(f"is no version: {error!r}") from error
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", version.host):
        raise KeeperError(f"{version.host!r} is no name of a host")
    if alien := {each.path for each in files} - {*paths}:
        raise KeeperError(f"{', '.join(sorted(alien))} is not among the job's files")
    if not files or not all(re.fullmatch("[0-9a-f]{64}", each.sha256) for each in files):
        raise KeeperError("has no SHA-256")
    return version


def newest(versions: Sequence[Version]) -> Version | None:
    """The newest version, or None if there is none."""
    return max(versions, key=lambda version: version.order, default=None)
