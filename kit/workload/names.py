"""The names of stacks and Compose projects, and their owners."""

from __future__ import annotations

from kit.servers import SERVER_PREFIX
from kit.workload.types import Kind

JOB_PREFIX = "train-"
"""The prefix of the names of jobs' stacks. A server's stack has the server's name."""


DATA = "data"
"""The name of the data services' Compose projects."""


def stack_of_job(name: str) -> str:
    """Return the name of a job's stack."""
    return f"{JOB_PREFIX}{name}"


def kind_of(workload: str) -> Kind:
    """Return the kind of a workload by its name. No job's name may begin as servers' names do."""
    return Kind.SERVER if workload.startswith(SERVER_PREFIX) else Kind.JOB


def project_of(cluster: str, stack: str) -> str:
    """Return the name of a Compose project. It contains the cluster: a host may belong to two.

    No other name in kit contains `_`.
    """
    return f"{cluster}_{stack}"


def owner_of(stack: str) -> tuple[Kind, str] | None:
    """Return the kind and name of the owner of a stack or project, or None if it has none."""
    stack = stack.rpartition("_")[2]
    if kind_of(stack) is Kind.SERVER:
        return Kind.SERVER, stack
    if stack.startswith(JOB_PREFIX):
        return Kind.JOB, stack.removeprefix(JOB_PREFIX)
    return None
