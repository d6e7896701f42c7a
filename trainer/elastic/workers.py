"""A worker as the agent of its host sees it: its process, and its reports."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from trainer.elastic import pulse
from trainer.elastic.pulse import Patience
from trainer.group.messages import Halt
from trainer.launcher.errors import FAILURE
from trainer.launcher.output import emit, say

HUNG = 120.0
"""Seconds in which a worker must leave an aborted group; then it is killed. It may compute for this
time before its next collective."""
HUNG_STILL = 30.0
"""The same for a stalled worker."""
WHERE = 2.0
"""Seconds in an aborted group after which a stalled worker must print its stack traces."""


@dataclass(frozen=True)
class Place:
    """The state of a worker: it is in the group `generation`, unless it has `left` that one.

    `ready`: it waits for a group. `store` is the endpoint of its own store, which the other workers
    use if it has rank 0. `members` are the agents of the group's hosts.
    """

    local_rank: int = 0
    start: int = 0  # Counts the processes of this local rank: old ones may still send messages.
    rank: int | None = None  # In the last group that it has joined.
    generation: int = 0
    left: int = 0
    ready: bool = False
    store: str = ""
    members: tuple[str, ...] = ()


def place_line(place: Place) -> bytes:
    """Return the line of a place."""
    return json.dumps(asdict(place)).encode() + b"\n"


def read_place(line: bytes) -> Place:
    """Read such a line; raises ValueError."""
    content = json.loads(line)
    return Place(**{**content, "members": tuple(content["members"])})


@dataclass
class Worker:
    """A worker's process, and its last report."""

    local_rank: int
    folder: Path  # Of the agent alone.
    process: Process | None = None
    place: Place = field(default_factory=Place)
    writer: asyncio.StreamWriter | None = None
    starts: int = 0  # Before the present one.
    stopped: bool = False  # By a signal such as SIGSTOP, or by a debugger.
    done: bool = False
    aborted: float | None = None  # Time of the order to abort.
    patience: Patience = field(default_factory=Patience)
    still: bool = False  # It makes no progress in its group: it hangs, or it waits for others.
    asked: bool = False  # Whether it was asked for its stack traces.

    @property
    def reached(self) -> int:
        """The number of collectives that it has reached in its group."""
        beat = self.patience.beat
        return beat.reached if beat.generation == self.place.generation else 0

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self.process is not None and self.process.returncode is None

    @property
    def runs(self) -> bool:
        """Whether the process exists and is not stopped."""
        return self.running and not self.stopped

    @property
    def inside(self) -> bool:
        """Whether it is in a group."""
        return not self.done and self.place.generation > self.place.left

    @property
    def halt_file(self) -> Path:
        """The file in which it writes its request to halt."""
        return self.folder / f"halt-{self.local_rank}"

    @property
    def pulse_file(self) -> Path:
        """The file in which it counts its collectives."""
        return self.folder / f"pulse-{self.local_rank}"

    def take_request(self) -> Halt | None:
        """Read and delete its request to halt, if there is one."""
        content = self.halt_file.read_text() if self.halt_file.exists() else ""
        self.halt_file.unlink(missing_ok=True)
        if not content:
            return None
        found = json.loads(content)
        return Halt(found["kind"], found["message"], found.get("code", FAILURE))

    def look(self) -> None:
        """Check whether the process was stopped, stalls, or does not leave its group."""
        if self.process is None or self.process.returncode is not None:
            return
        stopped = stands_still(self.process.pid)
        if stopped != self.stopped:
            self.stopped = stopped
            does = "was stopped by a signal" if self.stopped else "runs again"
            say(f"local rank {self.local_rank} {does}")
        if self.stopped:  # It will leave its group as soon as it continues.
            self.place = replace(self.place, left=max(self.place.generation, self.place.left))
        now = time.monotonic()
        self.patience.note(pulse.read(self.pulse_file), now)
        self.still = self.inside and self.patience.doubtful(now)
        if self.still:
            self.still = self.patience.exhausted(pulse.look_at(self.process.pid), now)
        if self.aborted:
            self._urge(self.process, now - self.aborted)

    def _urge(self, process: Process, waited: float) -> None:
        """If it does not leave an aborted group, request stack traces; at last, kill it."""
        name = f"local rank {self.local_rank}"
        if self.still and waited > WHERE and not self.asked:
            self.asked = True
            say(f"{name} hangs; stack traces of its threads, innermost call first:")
            process.send_signal(signal.SIGUSR2)
            emit("hung", local_rank=self.local_rank, seconds=round(waited, 1))
        patience = HUNG_STILL if self.still else HUNG
        if waited > patience:
            say(f"kills {name}: it has not left its group for {patience:.0f} s")
            process.kill()


def stands_still(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; False if it has ended."""
    with suppress(OSError):
        stat = Path("/proc", str(pid), "stat").read_text()
        return stat.rpartition(") ")[2][0] in "Tt"
    return False
