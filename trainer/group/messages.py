"""Messages of hosts and the coordinator. Each has the whole state, so any one may be lost.

A host repeats its report several times a second: that is also its heartbeat. The coordinator
answers each report with its present order for that host.
"""

import asyncio
import json
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeVar, get_args, get_origin

LONGEST = 2**20
"""Bytes of a line: some thousand members."""
REPORT_EVERY = 0.4
"""Seconds between two reports of a host: four fit in `HOST_SILENT`."""
HOST_SILENT = 1.6
"""Seconds without a report after which a host is lost."""
LOST = 3.0
"""Seconds without an answer after which a host connects to the coordinator again."""

MessageT = TypeVar("MessageT", bound="Report | Order")


class MalformedError(ValueError):
    """A line that is not a message of this version."""


def name_agent(host: str, number: int) -> str:
    """Name an agent's process; `number` is unique on its host."""
    return f"{host}-{number:x}"


def host_of(agent: str) -> str:
    """The host in an agent's name; a new coordinator may know nothing more of it."""
    return agent.rpartition("-")[0]


@dataclass(frozen=True)
class Member:
    """A host of a group; ranks count its workers after those of the members before it."""

    agent: str  # Names its agent's process.
    host: str
    store: str  # host:port of the store of its first worker or, for a script, of its torchrun.
    workers: int
    port: int = 0  # Another free port, for a script's own store.

    @property
    def address(self) -> str:
        """The address of the host."""
        return self.store.rpartition(":")[0].strip("[]")

    @property
    def endpoint(self) -> str:
        """host:port of a script's own store."""
        return f"{self.store.rpartition(':')[0]}:{self.port}"


@dataclass(frozen=True)
class Group:
    """The hosts that train together, in the order of ranks; the first one's store is used."""

    generation: int
    members: tuple[Member, ...]
    why: str = ""  # The change since the last group, for people.
    number: int = 0  # Of a script's round, for people.

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(member.workers for member in self.members)

    @cached_property
    def agents(self) -> frozenset[str]:
        """The agents of its hosts."""
        return frozenset(member.agent for member in self.members)

    @property
    def names(self) -> str:
        """The names of its hosts."""
        return ", ".join(member.host for member in self.members)

    def place(self, agent: str) -> int:
        """The place of a member among the members."""
        return [member.agent for member in self.members].index(agent)

    def first_rank(self, agent: str) -> int:
        """The rank of a member's first worker."""
        return sum(member.workers for member in self.members[: self.place(agent)])


@dataclass(frozen=True)
class Halt:
    """The end of a whole training for a reason that a restart would repeat, or of a script."""

    kind: str  # A class of failed events.
    message: str
    code: int
    host: str = ""
    # For a script: the failed worker, a key that is equal for failures at the same place, and
    # the seconds for which its round has run.
    rank: int | None = None
    exit_code: int | None = None
    fault: str = ""
    ran: float = 0.0


@dataclass(frozen=True)
class Result:
    """The progress of a training, by its newest checkpoint."""

    checkpoint: str
    step: int
    epoch: int | None = None
    accuracy: float | None = None
    loss: float | None = None

    @property
    def words(self) -> str:
        """The progress in words."""
        figure = "" if self.loss is None else f", loss {self.loss:.4g}"
        if self.accuracy is not None:
            figure = f", accuracy {self.accuracy * 100:.1f} %"
        return f"step {self.step}{figure}"


@dataclass(frozen=True)
class Notice:
    """The content of a notification. `id` is unique in a job, and the same if it is sent again."""

    kind: str  # One of contract/notify.py.
    id: str
    message: str
    hosts: tuple[str, ...] = ()
    exit_code: int | None = None
    result: Result | None = None


@dataclass(frozen=True)
class Report:
    """The state of a host.

    `generation` is that of the group that its workers have joined last, `left` the newest one that
    at least one of them has left, with or without a fault. `ready`: all of them wait for a group.
    """

    agent: str  # Names the agent's process.
    host: str
    workers: int
    store: str = ""
    generation: int = 0
    members: tuple[str, ...] = ()  # The agents of that group, for a new coordinator.
    left: int = 0
    ready: bool = False
    heard: int = 0  # The newest generation that it knows of.
    reached: tuple[int, int] = (0, 0)  # Lowest and highest number of its workers' collectives.
    still: bool = False  # One of its workers in that group stalls, by a fault or as it waits.
    starting: bool = False  # Not all of its workers run: the next group does not wait for them.
    leaving: bool = False  # It was asked to end.
    spare: bool = False  # It joins only if a group lacks hosts.
    saved: int = -1  # The step of its newest checkpoint, while it is in no group; -1: none.
    done: bool = False  # Its workers have trained to the end.
    halt: Halt | None = None
    out: Halt | None = None  # Why it is left out, until a person releases it.
    result: Result | None = None  # At its end.
    stops: bool = False  # It was asked to end; a script may still save.
    told: tuple[str, ...] = ()  # The ids of sent notices, from the last order.
    notice: Notice | None = None  # The sender is not a host of the job, and only sends this.
    # Of a host of a script:
    port: int = 0  # As in Member.
    number: int = 0  # The number of the round that it has joined last.
    bounds: tuple[int, int, int] | None = None  # The least and the most hosts, and the spares.
    failure: Halt | None = None  # The script's failure here in the round that it has left.
    content: str | None = None  # Of its newest checkpoint; None: unknown.
    once: bool = False  # Nothing restarts this host.
    asks: bool = False  # It only asks for the state, while it starts up.
    # Of a job that may end by itself (spent.py):
    ran: float | None = None  # Seconds since the first start that it knows of; None: asked to end.
    idle: float | None = None  # Seconds for which it has computed nothing.
    ends: str = ""  # The key of the job whose limit it has found to be reached: all end.


@dataclass(frozen=True)
class Order:
    """The order to a host; `generation` is that of the group that it concerns.

    wait: do nothing. join: form `group`. leave: leave the group at the end of a step. abort: close
    the group's connections, and leave it. end: end the workers, as all are done or due to `halt`.
    """

    kind: Literal["wait", "join", "leave", "abort", "end"] = "wait"
    generation: int = 0
    save: bool = False  # Whether to save before leaving: a host ends.
    group: Group | None = None
    halt: Halt | None = None
    why: str = ""  # Why the group is over, for people.
    failure: Halt | None = None  # Of a script, for which the round before has ended.
    ends: str = ""  # The key of the job by which all end.
    # As in a report, for all hosts. They change all the time: a change is not a new order.
    ran: float = field(default=0.0, compare=False)
    idle: float = field(default=0.0, compare=False)
    told: tuple[str, ...] = ()  # The ids of the notices that were sent.
    fault: str = ""  # Why a notification could not be sent.


def note_task(serving: set[asyncio.Task[None]]) -> None:
    """Add the current task, which serves a connection, to `serving`."""
    if task := asyncio.current_task():
        serving.add(task)
        task.add_done_callback(serving.discard)


async def served(serving: set[asyncio.Task[None]]) -> None:
    """Wait until connections that are about to end are served.

    Python 3.11 prints a traceback if such a task is cancelled.
    """
    if serving:
        await asyncio.wait(serving, timeout=1)


def encode(message: "Report | Order") -> bytes:
    """Return the line of a message."""
    return json.dumps(message, default=changed).encode() + b"\n"


def changed(message: Any) -> dict[str, Any]:
    """The fields of a message that differ from their defaults."""
    values = ((each, getattr(message, each.name)) for each in fields(message))
    return {each.name: value for each, value in values if value != each.default}


def decode(kind: type[MessageT], line: bytes) -> MessageT:
    """Read a message; raises MalformedError."""
    try:
        message: MessageT = read_value(kind, json.loads(line))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(f"no {kind.__name__.lower()}: {line[:80]!r}") from error
    return message


def read_value(kind: Any, content: Any) -> Any:
    """Read a value of a field's type from JSON; raises ValueError, TypeError or AttributeError."""
    if type(content) is kind or (kind is float and type(content) is int):
        return content
    if kinds := kinds_of(kind):
        known = {name: value for name, value in content.items() if name in kinds}
        return kind(**{name: read_value(kinds[name], value) for name, value in known.items()})
    parts = get_args(kind)
    if get_origin(kind) is tuple and type(content) is list:
        items = parts[:1] * len(content) if parts[-1] is Ellipsis else parts
        return tuple(read_value(*each) for each in zip(items, content, strict=True))
    if get_origin(kind) is Literal:
        return parts[parts.index(content)]
    if len(parts) != 2 or parts[1] is not type(None):
        raise TypeError(f"{content!r} is no {kind}")
    return None if content is None else read_value(parts[0], content)


@cache
def kinds_of(kind: Any) -> dict[str, Any]:
    """The types of the fields of a message or of a part of one; empty for other types."""
    return {each.name: each.type for each in fields(kind)} if is_dataclass(kind) else {}
