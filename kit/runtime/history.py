"""Deployments: their history, and the lock that prevents two at a time."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from kit.errors import KitError
from kit.runtime.source import SHORT, Source
from kit.values import show_age
from kit.workload.types import Workload

TOLERANCE = 2.0
"""Seconds by which the clock of a host may be behind this machine's."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment of a workload; `time` is in seconds since the epoch.

    `inventory` and `job_hash` are hashes of the input, `image` is the deployed reference. `commit`
    is that of the project's files, "" if it is not known; `changed`: they differed from it. `hosts`
    are all of its hosts, spares included. `code` is the version of the code that was sent with it,
    and the folder of the code.
    """

    job: str
    time: float
    by: str
    inventory: str
    job_hash: str
    image: str
    commit: str = ""
    subject: str = ""
    branch: str = ""
    changed: bool = False
    hosts: tuple[str, ...] = ()
    code: str = ""

    @property
    def version(self) -> str:
        """The commit as shown to users, with a + if files differed from it."""
        return f"{self.commit[:SHORT]}{'+' if self.changed else ''}"

    @property
    def source(self) -> str:
        """The commit with its subject and branch, as shown to users."""
        branch = f" on {self.branch}" if self.branch else ""
        more = "; files differed from it" if self.changed else ""
        return f"commit {self.commit[:SHORT]} “{self.subject}”{branch}{more}, by {self.by}"

    @property
    def when(self) -> str:
        """The time as shown to users."""
        return datetime.fromtimestamp(self.time).astimezone().isoformat(" ", "seconds")


def current_user() -> str:
    """Return the user and machine that run kit: `user@machine`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def deployment(work: Workload, started: float, source: Source) -> Deployment:
    """Return the entry of a workload; `started` is its start, `source` the version of its files."""
    return Deployment(
        work.name,
        started,
        current_user(),
        work.inventory_hash,
        work.job_hash,
        work.image,
        source.commit,
        source.subject,
        source.branch,
        source.changed,
        tuple(each.host.name for each in work.placements),
        f"{work.package.version} of {work.package.described}" if work.package else "",
    )


def read_deployment(content: Mapping[str, Any]) -> Deployment:
    """Return the entry in a JSON object, which another version of kit may have written.

    Raises:
        TypeError: A value is missing.
    """
    known = {each.name for each in fields(Deployment)}
    values = {name: value for name, value in content.items() if name in known}
    return Deployment(**values | {"hosts": tuple(content.get("hosts", ()))})


def begins(deployment: Deployment) -> float:
    """Return the time after which containers and runs belong to a deployment."""
    return deployment.time - TOLERANCE


def newest(deployments: Iterable[Deployment]) -> dict[str, Deployment]:
    """Return the newest of each workload; `deployments` are the newest first."""
    return {each.job: each for each in reversed(list(deployments))}


def undone(
    deployments: Iterable[Deployment],
    workloads: Iterable[Workload],
    contains: Callable[[str], bool],
) -> Iterator[Deployment]:
    """Yield deployments from other input and from a commit that the files here do not contain.

    A deploy of the workloads would undo them. `deployments` are the newest first.
    """
    known = newest(deployments)
    for work in workloads:
        last = known.get(work.name)
        if last is None or not last.commit:
            continue
        same = (last.inventory, last.job_hash) == (work.inventory_hash, work.job_hash)
        if not same and not contains(last.commit):
            yield last


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The user and process that deploy, since a time in seconds since the epoch."""

    by: str
    pid: int
    since: float

    def refusal(self, where: str) -> KitError:
        """Return the error for a second deploy; the lock is stored at `where`."""
        age = show_age(time.time() - self.since)
        return KitError(
            f"{self.by} (process {self.pid}) has been deploying for {age} (see {where})",
            "wait for it; if it is dead, `kit deploy --break-lock`",
        )


def this_process() -> LockHolder:
    """Return this process as the holder of a lock."""
    return LockHolder(current_user(), os.getpid(), time.time())
