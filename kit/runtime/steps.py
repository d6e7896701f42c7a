"""The steps of a deploy. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from kit.values import count
from kit.workload.types import Kind, Workload

"""Prints a line for the user."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action on a host; `cause` is the reason for it."""

    where: str
    what: str
    cause: str

    @property
    def batch(self) -> object:
        """Adjacent steps with the same batch run concurrently; None: one by one."""
        return None


def size(work: Workload) -> str:
    """Return the size of a started workload as text, with a server's addresses."""
    hosts = count(len(work.members), "host")
    if work.kind is Kind.JOB:
        spares = len(work.placements) - len(work.members)
        more = f", {count(spares, 'spare')}" if spares else ""
        return f"{hosts}, world size {work.processes}{more}"
    return f"{hosts}, {count(work.processes, 'GPU')}: {', '.join(work.urls)}"


def started_message(work: Workload) -> str:
    """Return the message for a workload that was started, or is ready for the queue."""
    if work.queue:
        return f"{work.name}: is ready on {count(len(work.placements), 'host')} for the queue"
    return f"{work.name}: started as {size(work)}"


def unchanged_message(work: Workload) -> str:
    """Return the message for a workload that needs no start."""
    runs = "runs already, from the same file"
    return f"{work.name}: {runs if work.parts else 'is idle: it has no GPU'}"
