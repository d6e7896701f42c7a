"""A worker's progress in its group: it counts collectives, in shared memory.

A rank that waits in a collective has reached it; a rank that hangs elsewhere has not. So the other
ranks wait for the one with the lowest count. The agent reads the count from the file, as a
hung worker may hold Python's global interpreter lock.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FORMAT, NUMBER = struct.Struct("=qqq"), struct.Struct("=q")
DOUBTS = 4.0
"""Seconds without progress after which the activity of a worker's process is read."""
LEAST = 10.0
"""Seconds without progress after which an inactive worker counts as stalled, at the earliest."""
FACTOR = 5.0
"""A stall is this many times longer than any earlier pause of the worker in its group."""
IDLE = 0.02
"""A worker that uses a smaller share of one core than this is inactive. While it computes, waits
for a GPU or reads data, it uses far more; in a deadlock none."""


class Beat(NamedTuple):
    """A worker's group, and the numbers of its collectives that it has begun and completed.

    Point-to-point operations are counted only when they complete.
    """

    generation: int = 0
    reached: int = 0
    ended: int = 0


class Pulse:
    """The worker's side: it writes the file KIT_PULSE, which the agent creates."""

    def __init__(self, file: str) -> None:
        """Map the file; with "", nothing is reported."""
        self._memory: mmap.mmap | bytearray = bytearray(FORMAT.size)
        if file:
            with Path(file).open("r+b") as opened:
                self._memory = mmap.mmap(opened.fileno(), FORMAT.size)
        self._reached = self._ended = 0

    def begin(self, generation: int) -> None:
        """Reset the counts for another group."""
        self._reached = self._ended = 0
        FORMAT.pack_into(self._memory, 0, *Beat(generation))

    def reach(self) -> None:
        """Count a collective that this rank is about to wait in."""
        self._reached += 1
        NUMBER.pack_into(self._memory, NUMBER.size, self._reached)

    def end(self) -> None:
        """Count a completed operation; two at once, of different threads, may count as one."""
        self._ended += 1
        NUMBER.pack_into(self._memory, 2 * NUMBER.size, self._ended)


def make(file: Path) -> None:
    """Create the file of a worker that is about to start."""
    file.write_bytes(FORMAT.pack(*Beat()))


def read(file: Path) -> Beat:
    """Read a worker's counts; they are zero if there is no file."""
    try:
        return Beat(*FORMAT.unpack(file.read_bytes()))
    except (OSError, struct.error):
        return Beat()


class Activity(NamedTuple):
    """The activity of a process and its children."""

    seconds: float = 0.0  # CPU time that they have used.
    disk: bool = False  # Whether a thread waits for a disk, local or remote.


@dataclass
class Patience:
    """The agent's side: detects a stalled worker by its own history; callers pass the time."""

    beat: Beat = field(default_factory=Beat)
    since: float = 0.0  # Time of its last progress.
    longest: float = 0.0  # Pause in its group, in seconds.
    doubts: float | None = None  # Since when it seems inactive.
    computed: float = 0.0  # Its CPU time until then.

    def note(self, beat: Beat, now: float) -> None:
        """Store a worker's counts."""
        if beat == self.beat:
            return
        if beat.generation == self.beat.generation:
            self.longest = max(self.longest, now - self.since)
        self.beat, self.since, self.doubts = beat, now, None

    def learn(self, now: float) -> None:
        """Remember the pause of a worker that left an aborted group by itself: it was only slow."""
        self.longest = max(self.longest, now - self.since)

    def doubtful(self, now: float) -> bool:
        """Whether to read the activity of the process."""
        return now - self.since > DOUBTS

    def exhausted(self, activity: Activity, now: float) -> bool:
        """Whether a worker is stalled; the agent calls this repeatedly."""
        idle = activity.seconds - self.computed <= IDLE * (now - (self.doubts or now))
        if self.doubts is None or activity.disk or not idle:
            self.doubts, self.computed = now, activity.seconds
        quiet = now - self.doubts > LEAST - DOUBTS
        return quiet and now - self.since > max(LEAST, FACTOR * self.longest)


def look_at(pid: int) -> Activity:
    """Read the activity of a process and its children; none if it has ended."""
    seconds, disk = 0.0, False
    try:
        for thread in Path("/proc", str(pid), "task").iterdir():
            # After the name, which may contain anything: state, … utime, stime (proc(5)).
            stat = (thread / "stat").read_text().rpartition(") ")[2].split()
            seconds += sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK")
            disk |= stat[0] == "D"
            for child in (thread / "children").read_text().split():
                more = look_at(int(child))
                seconds, disk = seconds + more.seconds, disk or more.disk
    except (OSError, ValueError, IndexError):
        pass
    return Activity(seconds, disk)
