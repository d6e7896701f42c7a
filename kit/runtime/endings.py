"""Containers for which a restart is useless: no program starts, or the input is wrong. Pure."""

from __future__ import annotations

from dataclasses import replace

from kit.errors import KitError
from kit.runtime.events import Reader
from kit.runtime.status import ENDED, MISTAKE, JobStatus, State
from kit.workload.types import Kind

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of the container's init process (tini) if it cannot start the program."""
HOPELESS = frozenset({MISTAKE, NOT_EXECUTABLE, NOT_FOUND})
"""Exit statuses of a job's containers after which a restart is useless."""


def never_began(kind: Kind, image: str, exit_status: int | None, error: str = "") -> str:
    """Return why a container's program cannot start, with a remedy; "" if it has begun.

    `error` is the engine's message if it could not create the container.
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


def by_limit(state: State, reader: Reader) -> tuple[State, str]:
    """Return the state of a job, and why it has ended by itself; "" if it has not.

    Its containers end with exit status 0, so that no engine restarts them: the job seems complete.
    """
    if state is State.COMPLETED and reader.limit:
        return State.STOPPED, reader.limit
    return state, ""


def as_failed(status: JobStatus, reason: str, now: float) -> JobStatus:
    """Return the final status of a workload that is removed because of a mistake.

    `reason` is the message of its hosts, used if its launcher has reported no failure.
    """
    hosts = tuple(
        host if host.state in ENDED else replace(host, state=State.FAILED, message="")
        for host in status.hosts
    )
    message = "" if status.failure else reason
    return replace(status, state=State.FAILED, message=message, ended=now, hosts=hosts)


def as_stopped(status: JobStatus, now: float) -> JobStatus:
    """Return the final status of a stopped workload, also of one that waited without hosts."""
    if status.state is State.WAITING and not status.hosts:
        return replace(status, state=State.STOPPED, ended=now)
    return status


class EndedError(KitError):
    """A job ended during its deploy; `exit_code` is that of its process, if one failed."""

    def __init__(self, message: str, hint: str, exit_code: int | None) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


def mistake_error(reason: str, status: JobStatus) -> EndedError:
    """Return the error for the user: the reason, the launcher's message, what to do next."""
    again = f"correct that, `kit render`, `kit deploy {status.job}`"
    message = f"{reason}\n  {status.failure}" if status.failure else reason
    hint = f"it was ended, because no restart can help; {again}"
    return EndedError(message, hint, status.exit_code)
