"""Detects the use of a session: connections from outside, and work on its GPUs or CPUs."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainer.launcher.container import CGROUP, has_gpus

PROC = Path("/proc")
TERMINALS = Path("/dev/pts")
BUSY_CORES = 0.2
# Mean number of busy cores; waiting editors and shells use less.


def connections(idle: float, proc: Path = PROC, terminals: Path = TERMINALS) -> int:
    """Count the processes that `docker exec` has started in this container: they have no parent.

    These are SSH connections, and each `kit shell` with input on its terminal in the last `idle`
    seconds: a shell whose client was lost does not end. The container's first process, and kernel
    threads, which have no command line, have no parent either.
    """
    found = 0
    for entry in proc.iterdir():
        if not entry.name.isdigit() or entry.name in {"1", str(os.getpid())}:
            continue
        with suppress(OSError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if fields[1] == "0" and len(words) > 1 and b"health" not in words:
                found += typed(terminals, int(fields[4])) < idle
    return found


def typed(terminals: Path, device: int) -> float:
    """Return the seconds since the last input on a terminal; 0 if unknown."""
    # proc(5), tty_nr: the minor number is in bits 31 to 20 and 7 to 0.
    number = device & 0xFF | device >> 12 & 0xFFF00
    with suppress(OSError):
        return time.time() - (terminals / str(number)).stat().st_atime if device else 0.0
    return 0.0


def gpus_compute() -> bool | None:
    """Return whether a GPU of this container computes now; None if no GPU reports it."""
    if not has_gpus():
        return None
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return None
    shares = [line.strip() for line in answer.stdout.splitlines()]
    known = [int(share) for share in shares if share.isdigit()]
    return any(known) if known else None


def processor_seconds() -> float:
    """Return the CPU time of this container in seconds; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in (CGROUP / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
    with suppress(OSError, ValueError):
        return int((CGROUP / "cpuacct" / "cpuacct.usage").read_text()) / 1e9
    return 0.0


class Sight(NamedTuple):
    """The observed use of a session; times are monotonic."""

    at: float
    used: float  # When it was last in use.
    connected: int = 0
    processor: float = 0.0


def look(before: Sight, now: float, connected: int, computes: bool | None, spent: float) -> Sight:
    """Return the present use of a session.

    `computes` is whether a GPU computes; if it is None, `spent` decides, the CPU time in seconds.
    """
    if computes is None:
        computes = spent - before.processor > BUSY_CORES * (now - before.at)
    used = now if connected or computes else before.used
    return Sight(now, used, connected, spent)
