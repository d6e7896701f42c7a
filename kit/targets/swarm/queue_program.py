"""The controller on a manager, as `kit queue up` installs it: through the manager's own engine."""

from __future__ import annotations

import sys

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.queue.controller import Controller
from kit.targets.swarm.queue import SwarmQueue


def main(url: str | None = None) -> int:
    """Run the controller through the engine at `url`, by default this machine's own."""
    queue = SwarmQueue(Docker("the manager", url))
    try:
        queue.leads()  # A wrong engine is told at once; later faults pass.
    except KitError as error:
        say(str(error))
        return 1
    Controller(queue, say).run()
    return 0


def say(text: str) -> None:
    """Write a line for the journal; standard output may be a pipe, which Python would keep full."""
    sys.stdout.write(f"queue: {text}\n")
    sys.stdout.flush()
