"""The controller on the named host, as `kit queue up` installs it: all engines over SSH."""

from __future__ import annotations

import json

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


def main(cluster: str, here: str, logins: str) -> int:
    """Run the controller; `logins` are those of the other hosts by name, as JSON."""
    others = {
        name: Docker(name, engine_url(login), patience=PATIENCE)
        for name, login in json.loads(logins).items()
    }
    own = Docker(here, None, patience=PATIENCE)
    host = Host(here, "", "", (), (), None, 0, ("hosts", here))
    queue = ComposeQueue(HostFolder(host, cluster, ssh.run_here), {here: own, **others})
    try:
        own.get("/info")  # A wrong engine is told at once; later faults pass.
    except KitError as error:
        say(str(error))
        return 1
    Controller(queue, say).run()
    return 0
