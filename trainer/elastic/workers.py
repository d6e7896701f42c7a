"""A worker as the agent of its host sees it: its process, and what it tells."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from dataclasses import asdict, dataclass, field

from trainer.elastic.pulse import Patience


@dataclass(frozen=True)
class Place:
    """Where a worker is: in the group `generation`, unless it has `left` that one.

    `ready`: it waits for a group. `store` is the endpoint of its own store, which the other workers
    use if it has rank 0. `members` are the agents of the group's hosts.
    """

    local_rank: int = 0
    start: int = 0  # Counts the processes of this local rank: an old one may still be heard.
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
    """A worker's process, and what it has said last."""

    local_rank: int
    process: Process | None = None
    place: Place = field(default_factory=Place)
    writer: asyncio.StreamWriter | None = None
    starts: int = 0  # Before the present one.
    stopped: bool = False  # By a signal such as SIGSTOP, or by a debugger.
    done: bool = False
    aborted: float | None = None  # Time of the order to abort.
    patience: Patience = field(default_factory=Patience)
    still: bool = False  # It reaches nothing in its group: it hangs, or it waits for others.
    asked: bool = False  # Where it hangs.

    @property
    def reached(self) -> int:
        """The exchanges that it has reached in its group."""
        beat = self.patience.beat
        return beat.reached if beat.generation == self.place.generation else 0

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.returncode is None

    @property
    def runs(self) -> bool:
        """Whether the process is there and does not stand still."""
        return self.running and not self.stopped

    @property
    def inside(self) -> bool:
        """Whether it is in a group."""
        return not self.done and self.place.generation > self.place.left
