"""The controller on a manager, as `kit queue up` installs it: through the manager's own engine."""

from __future__ import annotations

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.queue.controller import Controller
from kit.queue.program import say
from kit.targets.swarm.queue import SwarmQueue


def main(url: str | None = None) -> int:
    """Run the controller through the engine at `url`, by default this machine's own."""
    queue = SwarmQueue(Docker("the manager", url), controls=True)
    try:
        queue.leads()  # Report a wrong engine at once; later faults pass.
    except KitError as error:
        say(str(error))
        return 1
    Controller(queue, say).run()
    return 0
