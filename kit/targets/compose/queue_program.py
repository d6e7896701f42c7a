"""The controller on the named host, as `kit queue up` installs it: all engines over SSH."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.docker import Docker, engine_url
from kit.model import Host
from kit.queue.controller import Controller
from kit.queue.program import say
from kit.targets.compose.folder import HostFolder
from kit.targets.compose.queue import ComposeQueue

PATIENCE = 8.0
"""Seconds that an engine may take to answer: a host that does not is lost."""


class Lock:
    """A lock that this process has until its end, once no other process has it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def held(self) -> bool:
        """Return whether this process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main(cluster: str, here: str, logins: str) -> int:
    """Run the controller; `logins` are those of the other hosts by name, as JSON."""
    others = {
        name: Docker(name, engine_url(login), patience=PATIENCE)
        for name, login in json.loads(logins).items()
    }
    own = Docker(here, None, patience=PATIENCE)
    host = Host(here, "", "", (), (), None, 0, ("hosts", here))
    lock = Lock(Path.home() / ".local" / "share" / "kit" / cluster / "controller.lock")
    folder, dockers = HostFolder(host, cluster, ssh.run_here), {here: own, **others}
    queue = ComposeQueue(folder, dockers, controls=True, alone=lock.held)
    try:
        own.get("/info")  # Report a wrong engine at once; later faults pass.
    except KitError as error:
        say(str(error))
        return 1
    Controller(queue, say).run()
    return 0
