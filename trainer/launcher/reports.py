"""The reports of a script's agents to the rendezvous, and the rounds that it answers with."""

import asyncio
import json
from typing import Any, NamedTuple

HOST_SILENT = 1.6  # Seconds without a report after which a host is lost.
REPORT_EVERY = 0.4  # Seconds between two reports: four fit in HOST_SILENT.
LOST = 3.0  # Seconds without an answer after which an agent connects anew.


class Round(NamedTuple):
    """One start of a script on several hosts."""

    number: int
    id: str  # Nobody takes a round of another run, with the same number, for this one.
    agents: list[str]  # In the order of the ranks.
    hosts: list[str]
    address: str  # Of the first host.
    ports: list[int]  # Free ones of the first host: for torchrun, and for the script.
    endpoints: list[str]  # A free one on each host, in the same order.


class Report(NamedTuple):
    """What an agent tells the rendezvous."""

    agent: str  # Unique: a host that was started again is another agent.
    host: str
    address: str
    ports: list[int]
    least: int
    most: int
    state: str  # starts, idle; with a round: runs, done, failed.
    round: Round | None = None
    hopeless: bool = False  # A restart would repeat this failure.
    leaving: bool = False
    once: bool = False  # Nothing restarts this host.
    spare: bool = False  # It takes part only if others are missing.
    spares: int = 0  # Of the job.
    failure: dict[str, Any] | None = None  # The values of its event, if it has failed.
    fault: str = ""  # As in LaunchError.
    saved: str | None = None  # Content of the newest checkpoint; None: nobody would know of it.


def read_round(found: Any) -> Round:
    """Read a round; raises ValueError or TypeError."""
    read = Round(*found)
    texts = (*read.agents, *read.hosts, read.id, read.address, *read.endpoints)
    numbers = (read.number, *read.ports)
    if not all(isinstance(each, str) for each in texts) or len(read.ports) != 2:
        raise ValueError("not a round")
    if not all(type(each) is int for each in numbers) or not read.agents:
        raise ValueError("not a round")
    return read


def read_report(line: bytes) -> Report:
    """Read a report; raises ValueError or TypeError."""
    read = Report(*json.loads(line))
    texts, numbers = (read.agent, read.host, read.address), (*read.ports, *read[4:6], read.spares)
    if not all(isinstance(each, str) for each in texts) or len(read.ports) != 2:
        raise ValueError("not a report")
    if not all(type(each) is int for each in numbers):
        raise ValueError("not a report")
    if read.state not in ("starts", "idle") and not read.round:
        raise ValueError("not a report")
    words = (read.fault, read.saved or "")
    if not all(isinstance(each, str) for each in words) or type(read.failure or {}) is not dict:
        raise ValueError("not a report")
    return read._replace(round=read_round(read.round) if read.round else None)


# asyncio prints a traceback of a handler that is cancelled at the end of the program.
ENDS_OF_HANDLERS = (asyncio.IncompleteReadError, asyncio.CancelledError)
