"""The data agents of the hosts: their status, and requests to fetch and to delete."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kit.datasets import ask
from kit.datasets.programs import Message, Programs, talk
from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.hosts.environment import clean
from kit.model import DataSet, Host

LABEL = "kit.data"
"""The label of the agents' containers, with the cluster's name."""
CACHE = "/cache"
"""The folder of the data sets in the agents' containers; on the storage host also the store."""
START = 60.0
"""Seconds in which an agent must have started: its image may have to be pulled before."""
POLL = 1.0


class AbsentError(KitError):
    """No agent answers on a host."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent of a host. `command` asks it, in its container or on this machine.

    `python` runs Python in its container; () on this machine.
    """

    where: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    python: tuple[str, ...] = ()

    def store(self) -> Programs:
        """Return the way to run the program for the store, in the storage host's agent."""
        words = (*self.python, "-m", "trainer.datasets.store")
        return Programs(self.where, words, CACHE, self.environment)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        say: Callable[[Message], object] = lambda _: None,
    ) -> Message:
        """Send a request, pass each object of the answer to `say`, and return the last one.

        Raises:
            AbsentError: It does not answer.
            KitError: It refused or failed.
        """
        words = [*self.command, method, path, *([] if body is None else [json.dumps(body)])]
        last: Message = {}
        try:
            for message in talk(words, self.environment, self.where):
                if isinstance(message, dict):
                    last = message
                    say(message)
        except KitError as error:
            if last.get("absent"):
                raise AbsentError(error.message, "`kit data prefetch` starts it") from None
            raise
        return last


def agent_here(folder: Path) -> Agent:
    """Return the agent of this machine, with its folder."""
    words = (sys.executable, ask.__file__, str(folder))
    return Agent("this machine", words, os.environ)


def agent_on(host: Host, cluster: str) -> Agent:
    """Return the agent in the container of a host.

    Raises:
        AbsentError: The host has no such container.
        KitError: Its engine cannot be reached.
    """
    docker = Docker.of(host)
    try:
        listed = docker.get("/containers/json", filters={"label": [f"{LABEL}={cluster}"]})
    finally:
        docker.close()
    if not listed:
        raise AbsentError(f"{host.name}: no data agent runs", "`kit data prefetch` starts it")
    source = Path(ask.__file__).read_text(encoding="utf-8")
    inside = ("docker", *docker.options, "exec", "--interactive", listed[0]["Id"], "python3")
    return Agent(host.name, (*inside, "-c", source, CACHE), clean(os.environ), inside)


def started(find: Callable[[], Agent], patience: float = START) -> Agent:
    """Wait for an agent, and return it when it answers.

    Raises:
        AbsentError: It does not answer in time.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with suppress(AbsentError):
            agent = find()
            agent.ask("GET", "/status")
            return agent
        time.sleep(POLL)
    agent = find()
    agent.ask("GET", "/status")
    return agent


def use(agent: Agent, data: DataSet, say: Callable[[Message], object]) -> Message:
    """Request that the agent fetches a data set, and return when it is complete.

    Raises:
        KitError: The fetch failed.
    """
    named = {"name": data.name} | ({"version": data.version} if data.version else {})
    return agent.ask("POST", "/use", {"who": "kit data prefetch", "data": [named]}, say)
