"""Runs a command and prints its processor time beside its budget: `make test` and its kind.

The time is that of all processes which the command has started, also of those that outlive their
parents: engines, containers, supervisors. They become children of this process (PR_SET_CHILD_
SUBREAPER), whose kernel returns the time of each child together with the children it waited for.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER, linux/prctl.h."""
GRACE = 10.0
"""Seconds in which processes that are left over may end."""


class Children:
    """The children of this process, own and adopted, and the seconds of those that have ended."""

    def __init__(self) -> None:
        self.seconds = 0.0
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def wait(self, pid: int) -> int:
        """Wait for one child, and for all that end before it; return its status."""
        while True:
            ended, status = self._reap(0)
            if ended == pid:
                return os.waitstatus_to_exitcode(status)

    def leftover(self) -> list[str]:
        """Wait for the others for a moment; return those that still run."""
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            try:
                ended, _ = self._reap(os.WNOHANG)
            except ChildProcessError:
                return []
            if not ended:
                time.sleep(0.1)
        return [f"{pid} {command_of(pid)}" for pid in children_of(os.getpid())]

    def _reap(self, options: int) -> tuple[int, int]:
        ended, status, usage = os.wait4(-1, options)
        if ended:
            self.seconds += usage.ru_utime + usage.ru_stime
        return ended, status


def children_of(parent: int) -> list[int]:
    task = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in task.read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()[:100]


def main() -> int:
    """Return the exit status of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--minutes", type=float, help="the budget of processor time")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    began, children = time.monotonic(), Children()
    process = subprocess.Popen(options.command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to the command, too.
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    status = children.wait(process.pid)
    for each in children.leftover():
        print(f"{options.name}: left running: {each}")
    used, wall = children.seconds / 60, (time.monotonic() - began) / 60
    budget = f" of {options.minutes:g}" if options.minutes else ""
    over = "; over the budget" if options.minutes and used > options.minutes else ""
    print(f"{options.name}: {used:.1f}{budget} CPU-minutes, {wall:.1f} minutes{over}")
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
