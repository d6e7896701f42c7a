"""What was deployed when, by whom, and from which input."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass

from kit.workload.types import Workload


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was deployed when (seconds since the epoch), by whom, and from which input.

    `inventory` and `job_hash` are hashes of what the files say, `image` is the reference that ran.
    """

    job: str
    time: float
    by: str
    inventory: str
    job_hash: str
    image: str


def person() -> str:
    """Return who runs kit, and where: `user@machine`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def deployment(work: Workload, time: float) -> Deployment:
    """Return what is to be written down on what was started at `time`."""
    return Deployment(work.name, time, person(), work.inventory_hash, work.job_hash, work.image)
