"""The failure of a worker: its exception, its place, and whether a restart would repeat it."""

import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.launcher.errors import FAILURE, MISTAKE, LaunchError

KILLS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
# A restart repeats these errors of a script.
HOPELESS = re.compile(r"(ImportError|ModuleNotFoundError|IndentationError|SyntaxError|TabError)\b")


def first_failure(failures: Mapping[int, Any], folder: Path) -> LaunchError:
    """Describe this host's first failed worker: its global rank, and its exception if known.

    `folder` has the workers' exceptions, as `Prefix` writes them.
    """
    # A worker that lost its peer writes no file; torchrun ends the other workers with SIGTERM.
    *_, rank = min(
        (not Path(each.error_file).is_file(), each.exitcode == -signal.SIGTERM, each.timestamp, key)
        for key, each in failures.items()
    )
    code, message = failures[rank].exitcode, failures[rank].message
    who = f"rank {rank} failed first on this host (local rank {failures[rank].local_rank})"
    trace = message["extraInfo"]["py_callstack"] if isinstance(message, dict) else ""
    said = exception_of(trace) or exception_in(folder / str(rank), code)
    return worker_failure(who, code, said, trace, rank)


def exception_of(trace: str) -> str:
    """The exception of a traceback, and its place, or ""."""
    found = Trace()
    for line in trace.splitlines():
        found.read(line)
    return found.exception


def worker_failure(
    who: str, code: int, said: str, trace: str = "", rank: int | None = None
) -> LaunchError:
    """Describe the end of a worker with an exit code, negative for a signal.

    `said` is its exception, or its last line in quotes, if it is known. A worker that has raised an
    exception has failed by itself, also if it aborts at its end: gloo may do that.
    """
    how = how_ended(code)
    said = "" if how in KILLS else said
    text, fault = f"{who}, {how}{f': {said}' if said else ''}", fault_of(how, said)
    if code < 0:
        code = 128 - code
        if not said or said.startswith('"'):
            return LaunchError(f"{text}\n{trace}".rstrip(), FAILURE, "killed", rank, code, fault)
    hopeless = HOPELESS.match(said)
    if hopeless:
        text += "; correct the script, or install what it needs in its image"
    code_of_all, kind = (MISTAKE, "input") if hopeless else (FAILURE, "worker")
    return LaunchError(f"{text}\n{trace}".rstrip(), code_of_all, kind, rank, code, fault)


def fault_of(how: str, said: str) -> str:
    """A key that is equal for failures at the same place: the exception's type and line, or `how`.

    The message of an exception may have numbers and addresses that differ each time.
    """
    kind, place = re.match(r"[\w.]+", said), re.search(r"\([^()]*:\d+\)$", said)
    return f"{kind[0]} {place[0] if place else ''}".rstrip() if kind else how


def how_ended(code: int) -> str:
    """Describe an exit code, negative for a signal."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def exception_in(file: Path, code: int, seconds: float = 5.0) -> str:
    """The exception that a worker's `Prefix` writes when it has copied all lines, or "".

    It does so when the worker and all processes with its streams have ended: this waits for at most
    `seconds`. A worker that was killed has no exception, but often children that live for longer.
    """
    deadline = time.monotonic() + (1.0 if how_ended(code) in KILLS else seconds)
    while True:
        with suppress(OSError):
            return file.read_text(errors="replace")
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.05)


MESSAGE = 500  # Characters of an exception in messages and events.


class Trace:
    """Finds the exception of the last Python traceback in a process's stderr."""

    def __init__(self) -> None:
        self.exception = ""  # As Python prints it, and the line that raised it.
        self._last = ""
        self._inside = False
        self._place = ""

    @property
    def words(self) -> str:
        """The exception or, in quotes, the last line: sys.exit and argparse print no traceback."""
        return self.exception or (f'"{self._last[:MESSAGE]}"' if self._last else "")

    def read(self, line: str) -> None:
        """Process one line."""
        self._last = line.strip() or self._last
        if line.startswith("Traceback (most recent call last)"):
            self._inside, self._place = True, ""
        elif found := re.match(r'  File "(.+)", line (\d+)', line):
            self._place = f"{found[1]}:{found[2]}"
        # Errors of compilation are printed without the first line of a traceback.
        elif (self._inside and re.match(r"\w", line)) or re.match(r"\w+Error: ", line):
            place = f" ({self._place})" if self._place else ""
            self.exception, self._inside = f"{line[:MESSAGE]}{place}", False
