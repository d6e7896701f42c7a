"""The names of stacks and Compose projects, and what they belong to."""

from __future__ import annotations

from kit.model import SERVER_PREFIX
from kit.workload.types import Kind

JOB_PREFIX = "train-"
"""How the names of jobs' stacks begin. A server's stack has the server's name."""


def stack_of_job(name: str) -> str:
    """Return the name of a job's stack."""
    return f"{JOB_PREFIX}{name}"


def project_of(cluster: str, stack: str) -> str:
    """Return the name of a Compose project: a host may belong to two clusters.

    No name of kit's has a `_` of its own.
    """
    return f"{cluster}_{stack}"


def owner_of(stack: str) -> tuple[Kind, str] | None:
    """Return the job or the server that a stack, or a project, belongs to; None for neither."""
    stack = stack.rpartition("_")[2]
    if stack.startswith(SERVER_PREFIX):
        return Kind.SERVER, stack
    if stack.startswith(JOB_PREFIX):
        return Kind.JOB, stack.removeprefix(JOB_PREFIX)
    return None
