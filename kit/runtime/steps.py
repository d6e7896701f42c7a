"""Steps: what is to be done, where, and why. Pure values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kit.values import count
from kit.workload.types import Kind, Workload

Say = Callable[[str], None]
"""What takes a line for the person who waits."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is to be done, where, and why: `cause` is what was seen that asks for it."""

    where: str
    what: str
    cause: str

    @property
    def batch(self) -> object:
        """What neighbouring steps have in common that are taken at once; None: one by one."""
        return None


def size(work: Workload) -> str:
    """Say how large a workload is that was started, and where a server answers."""
    hosts = count(len(work.placements), "host")
    if work.kind is Kind.JOB:
        return f"{hosts}, world size {work.processes}"
    return f"{hosts}, {count(work.processes, 'GPU')}: {', '.join(work.urls)}"


def left_alone(work: Workload) -> str:
    """Say why a deploy starts nothing of a workload."""
    runs = "runs already, from the same file"
    return f"{work.name}: {runs if work.parts else 'is idle, as no GPU is given to it'}"
