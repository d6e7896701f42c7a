"""The error of all programs of this package."""

from __future__ import annotations

FAILURE, MISTAKE = 1, 2  # Exit codes: the work has failed; a mistake in the input.


class DataSetError(Exception):
    """An expected error, with a message, a remedy, and the exit code."""

    def __init__(self, message: str, fix: str, code: int = FAILURE) -> None:
        super().__init__(f"{message}; {fix}")
        self.message, self.fix, self.code = message, fix, code
