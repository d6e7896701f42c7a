"""What a worker tells the agent of its host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


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
