"""How far a worker has come in its group: it counts exchanges, in shared memory.

Who waits in an exchange has reached it; who hangs on its own has not. So the rank for which all
others wait is the one that has reached the fewest. The agent reads the count without the worker,
which may be hung with Python's lock held.
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
"""Seconds without progress after which a worker is looked at more closely."""
LEAST = 10.0
"""Seconds without progress after which a worker that does nothing stands still."""
FACTOR = 5.0
"""It must be so many times longer than any earlier pause of the worker in its group."""
IDLE = 0.02
"""A worker that uses less of one processor than this computes nothing. On the CPU, and while it
waits for a GPU or reads data, it uses far more; in a deadlock none at all."""


class Beat(NamedTuple):
    """A worker's group, the exchanges of all ranks that it has reached there, and has ended.

    Those with single ranks are only counted at their end.
    """

    generation: int = 0
    reached: int = 0
    ended: int = 0


class Pulse:
    """The worker's side: its file KIT_PULSE, which the agent has made."""

    def __init__(self, file: str) -> None:
        """Map the file; "" stands for none, and then nothing is reported."""
        self._memory: mmap.mmap | bytearray = bytearray(FORMAT.size)
        if file:
            with Path(file).open("r+b") as opened:
                self._memory = mmap.mmap(opened.fileno(), FORMAT.size)
        self._reached = self._ended = 0

    def begin(self, generation: int) -> None:
        """Count from zero, in another group."""
        self._reached = self._ended = 0
        FORMAT.pack_into(self._memory, 0, *Beat(generation))

    def reach(self) -> None:
        """Count an exchange of all ranks that this one is about to wait in."""
        self._reached += 1
        NUMBER.pack_into(self._memory, NUMBER.size, self._reached)

    def end(self) -> None:
        """Count an exchange that is over; two at once, of different threads, may count as one."""
        self._ended += 1
        NUMBER.pack_into(self._memory, 2 * NUMBER.size, self._ended)


def make(file: Path) -> None:
    """Make the file of a worker that is about to start."""
    file.write_bytes(FORMAT.pack(*Beat()))


def read(file: Path) -> Beat:
    """Read a worker's count; it has reached nothing if there is no file."""
    try:
        return Beat(*FORMAT.unpack(file.read_bytes()))
    except (OSError, struct.error):
        return Beat()


class Activity(NamedTuple):
    """The activity of a process and its children."""

    seconds: float = 0.0  # Of processors that they have used.
    disk: bool = False  # Whether a thread waits for a disk, be it of another host.


@dataclass
class Patience:
    """The agent's side: whether a worker stands still, by its own history. It is given the time."""

    beat: Beat = field(default_factory=Beat)
    since: float = 0.0  # Time of its last progress.
    longest: float = 0.0  # Pause in its group, in seconds.
    doubts: float | None = None  # Since when it may do nothing.
    computed: float = 0.0  # Its computing time until then.

    def note(self, beat: Beat, now: float) -> None:
        """Take note of a worker's count."""
        if beat == self.beat:
            return
        if beat.generation == self.beat.generation:
            self.longest = max(self.longest, now - self.since)
        self.beat, self.since, self.doubts = beat, now, None

    def learn(self, now: float) -> None:
        """A worker that was left continues by itself: it was slow, and is so perhaps again."""
        self.longest = max(self.longest, now - self.since)

    def doubtful(self, now: float) -> bool:
        """Whether to look at what the process does."""
        return now - self.since > DOUBTS

    def exhausted(self, activity: Activity, now: float) -> bool:
        """Whether a worker stands still, which is looked at again and again."""
        idle = activity.seconds - self.computed <= IDLE * (now - (self.doubts or now))
        if self.doubts is None or activity.disk or not idle:
            self.doubts, self.computed = now, activity.seconds
        quiet = now - self.doubts > LEAST - DOUBTS
        return quiet and now - self.since > max(LEAST, FACTOR * self.longest)


def look_at(pid: int) -> Activity:
    """Look at what a process and its children do; nothing if it has ended."""
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
