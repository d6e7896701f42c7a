"""Workloads with a mistake in their input. They are ended, because no restart can help."""

from __future__ import annotations

import time
from dataclasses import replace

from kit.errors import KitError
from kit.runtime.status import ENDED, JobStatus, State


def as_failed(status: JobStatus, reason: str) -> JobStatus:
    """Return the final status of a workload that is removed because of a mistake.

    `reason` is that of its hosts, for one whose launcher has said nothing.
    """
    hosts = tuple(
        host if host.state in ENDED else replace(host, state=State.FAILED, message="")
        for host in status.hosts
    )
    message = "" if status.failure else reason
    return replace(status, state=State.FAILED, message=message, ended=time.time(), hosts=hosts)


def mistake_error(reason: str, status: JobStatus) -> KitError:
    """Return the error for the user: the reason, the launcher's message, what to do next."""
    again = f"correct that, `kit render`, `kit deploy {status.job}`"
    message = f"{reason}\n  {status.failure}" if status.failure else reason
    return KitError(message, f"it was ended, because no restart can help; {again}")
