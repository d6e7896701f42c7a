"""How containers end without having begun: what their image lacks. Pure."""

from __future__ import annotations

from kit.runtime.status import MISTAKE
from kit.workload.types import Kind

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of the container's init process (tini) if it cannot start the program."""
HOPELESS = frozenset({MISTAKE, NOT_EXECUTABLE, NOT_FOUND})
"""Exit statuses of a job's containers for what no restart can help."""


def never_began(kind: Kind, image: str, exit_status: int | None, error: str = "") -> str:
    """Return why a container's program cannot start, with a remedy; "" if it has begun.

    `error` is the engine's, if it could not even create the container.
    """
    missing = exit_status == NOT_FOUND or "executable file not found" in error
    if not missing and exit_status != NOT_EXECUTABLE:
        return ""
    if kind is Kind.SERVER:
        # Its command may be a shell, which ends with the same status.
        what = "is not there" if missing else "may not be executed"
        return f"a program that its command starts {what} in the image {image}: see kit logs"
    fix = "build it on an image with Python 3.10 or newer, such as pytorch/pytorch"
    which = "" if missing else " that may be executed"
    return f"the image {image} has no python3{which}: {fix}"
