"""The coordinator of the built-in training."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from functools import partial

from trainer.group.decisions import Decisions
from trainer.group.server import Server

CHANCES = 10**6
"""Numbers of which the next group has one, if the clock does not tell it."""


def serve(listener: socket.socket, hosts: tuple[int, int, int], say: Callable[[str], None]) -> int:
    """Serve a job's hosts at a listening socket; see `Server`.

    `hosts` are the least and the most that train together, and the number of spares.
    """
    chance = partial(random.randrange, CHANCES)
    decisions = Decisions(time.monotonic, *hosts, time.time, chance, say)
    return asyncio.run(Server(decisions).serve(listener))
