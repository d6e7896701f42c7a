"""What hosts and the coordinator tell each other: whole states, so that any message may be lost.

A host repeats its report several times a second: that is also its heartbeat. The coordinator
answers each report with its present order for that host.
"""

import asyncio
import json
from dataclasses import asdict, dataclass, fields
from typing import Literal, TypeVar

LONGEST = 2**20
"""Bytes of a line: some thousand members."""
REPORT_EVERY = 0.4
"""Seconds between two reports of a host: four fit in `SILENT`."""
SILENT = 1.6
"""Seconds without a report after which a host is lost."""
LOST = 3.0
"""Seconds without an answer after which a host connects to the coordinator anew."""

MessageT = TypeVar("MessageT", bound="Report | Order")


class MalformedError(ValueError):
    """A line that is no message of this version."""


def name_agent(host: str, number: int) -> str:
    """Name an agent's process; `number` is unique on its host."""
    return f"{host}-{number:x}"


def host_of(agent: str) -> str:
    """The host in the name of an agent's process: all that a new coordinator knows of some."""
    return agent.rpartition("-")[0]


@dataclass(frozen=True)
class Member:
    """A host of a group; ranks count its workers after those of the members before it."""

    agent: str  # Names its agent's process.
    host: str
    store: str  # host:port of the store of its first worker.
    workers: int


@dataclass(frozen=True)
class Group:
    """The hosts that train together, in the order of ranks; the first one's store is used."""

    generation: int
    members: tuple[Member, ...]
    why: str = ""  # What has changed since the last group, for people.

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(member.workers for member in self.members)

    def first_rank(self, agent: str) -> int:
        """The rank of a member's first worker."""
        before = self.members[: [member.agent for member in self.members].index(agent)]
        return sum(member.workers for member in before)


@dataclass(frozen=True)
class Halt:
    """The end of a whole training for a reason that a restart would repeat."""

    kind: str  # A class of failed events.
    message: str
    code: int
    host: str = ""


@dataclass(frozen=True)
class Report:
    """The state of a host.

    `generation` is that of the group that its workers have joined last, `left` the newest one that
    at least one of them has left, be it by a fault. `ready`: all of them wait for a group.
    """

    agent: str  # Names the agent's process.
    host: str
    workers: int
    store: str = ""
    generation: int = 0
    members: tuple[str, ...] = ()  # The agents of that group, for a coordinator that is new.
    left: int = 0
    ready: bool = False
    heard: int = 0  # The newest generation that it was told of.
    reached: tuple[int, int] = (0, 0)  # Exchanges in that group: the last worker's, the first's.
    still: bool = False  # One of its workers in that group stands still, by itself or as it waits.
    starting: bool = False  # Not all of its workers run: nobody waits for them.
    leaving: bool = False  # It was asked to end.
    spare: bool = False  # It joins only if a group lacks hosts.
    saved: int = -1  # The step of its newest checkpoint, while it is in no group; -1: none.
    done: bool = False  # Its workers have trained to the end.
    halt: Halt | None = None
    out: Halt | None = None  # Why it is left out, until a person releases it.


@dataclass(frozen=True)
class Order:
    """What a host shall do; `generation` is that of the group that it concerns.

    wait: nothing. join: form `group`. leave: leave the group at the end of a step. abort: close the
    group's connections, and leave it. end: end the workers, as all are done or because of `halt`.
    """

    kind: Literal["wait", "join", "leave", "abort", "end"] = "wait"
    generation: int = 0
    save: bool = False  # Whether to save before leaving: a host ends.
    group: Group | None = None
    halt: Halt | None = None


def note_task(serving: set[asyncio.Task[None]]) -> None:
    """Note the task that serves a connection."""
    if task := asyncio.current_task():
        serving.add(task)
        task.add_done_callback(serving.discard)


async def served(serving: set[asyncio.Task[None]]) -> None:
    """Wait until connections that are about to end are served.

    Python 3.11 prints a traceback if such a task is cancelled.
    """
    if serving:
        await asyncio.wait(serving, timeout=1)


def encode(message: Report | Order) -> bytes:
    """Return the line of a message."""
    return json.dumps(asdict(message)).encode() + b"\n"


def decode(kind: type[MessageT], line: bytes) -> MessageT:
    """Read a message; raises MalformedError."""
    try:
        content = json.loads(line)
        for name in ("members", "reached"):
            if name in content:
                content[name] = tuple(content[name])
        if group := content.get("group"):
            members = tuple(Member(**member) for member in group["members"])
            content["group"] = Group(**{**group, "members": members})
        for name in ("halt", "out"):
            if halt := content.get(name):
                content[name] = Halt(**halt)
        known = {each.name for each in fields(kind)}
        return kind(**{name: value for name, value in content.items() if name in known})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedError(f"no {kind.__name__.lower()}: {line[:80]!r}") from error
