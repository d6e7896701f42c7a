"""The history of deployments."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass

from kit.workload.types import Workload


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment of a workload; `time` is in seconds since the epoch.

    `inventory` and `job_hash` are hashes of the input, `image` is the reference that ran.
    """

    job: str
    time: float
    by: str
    inventory: str
    job_hash: str
    image: str


def current_user() -> str:
    """Return the user and machine that run kit: `user@machine`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def deployment(work: Workload, time: float) -> Deployment:
    """Return the entry for a workload that was started at `time`."""
    return Deployment(
        work.name, time, current_user(), work.inventory_hash, work.job_hash, work.image
    )
