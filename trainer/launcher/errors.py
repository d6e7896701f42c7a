"""Expected errors, and their report at the end of a program."""

from collections.abc import Callable
from typing import Any

from trainer.launcher.output import emit, say

MISTAKE, FAILURE = 2, 1  # Exit codes: a mistake in the input; work has failed.


class LaunchError(Exception):
    """An expected error; `kind` is a class of failed events."""

    known = False  # Whether the coordinator has sent it, so that all hosts know of it.

    def __init__(
        self,
        message: str,
        code: int = MISTAKE,
        kind: str = "input",
        rank: int | None = None,
        exit_code: int | None = None,
        fault: str = "",
        host: str = "",
    ) -> None:
        """`rank` and `exit_code` are those of the worker that failed, if one did.

        `fault` is equal for failures of a script at the same place, "" if the script is not the
        cause. `host` is another host, on which it failed.
        """
        super().__init__(message)
        self.code, self.kind = code, kind
        self.rank, self.exit_code = rank, exit_code
        self.fault, self.host = fault, host

    def values(self) -> dict[str, Any]:
        """The values of its event."""
        line, code = str(self).splitlines()[0], self.exit_code or self.code
        values = {"kind": self.kind, "message": line, "rank": self.rank, "exit_code": code}
        return {**values, "host": self.host}


def guarded(act: Callable[[], int | None]) -> int:
    """Return the exit code of `act`; report a LaunchError."""
    try:
        return act() or 0
    except LaunchError as error:
        emit("failed", **error.values())
        say(f"error: {f'{error.host}: ' if error.host else ''}{error}", error=True)
        return error.code
