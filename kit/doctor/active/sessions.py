"""Agents in containers: a container for each, one request and one answer at a time."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.programs import Program, ProgramError, aborted
from kit.model import Host

AGENT = Path(__file__).with_name("agent.py")
LOADER = "import sys,base64;exec(base64.b64decode(sys.stdin.readline()))"
"""The program comes by standard input: it is too long for a command line."""
PATIENCE = 60.0
"""Seconds for an answer, with the start of the container."""
LABEL = "kit.doctor"


def open_session(host: Host, image: str, name: str, options: Sequence[str]) -> Program:
    """Start an agent in a container; a failed start is reported instead of the agent's answers."""
    command = docker_run(name, image, options, "python3", ("-u", "-c", LOADER))
    session = Program(name, [*ssh.command(host.ssh), f"exec {command}"])
    session.send(base64.b64encode(AGENT.read_bytes()).decode())
    return session


def docker_run(
    name: str,
    image: str,
    options: Sequence[str],
    entry: str,
    arguments: Sequence[str],
    *,
    talks: bool = True,
) -> str:
    """Return the command of a container that removes itself; `talks`: it reads its input."""
    own = (
        *(["-i"] if talks else ()),
        "--rm",
        "--pull",
        "never",
        "--log-driver",
        "none",
        "--name",
        name,
    )
    label = ("--label", f"{LABEL}={name}")
    words = ["docker", "run", *own, *label, *options, "--entrypoint", entry, image, *arguments]
    return shlex.join(words)


def remove(hosts: Sequence[Host], token: str) -> None:
    """Remove the containers of an interrupted run."""
    script = (
        f"docker ps -aq --filter label={LABEL} --filter name=kit-doctor-{token} "
        "| xargs -r docker rm -f"
    )

    def one(host: Host) -> None:
        with suppress(KitError):  # The host may not answer.
            ssh.run(host, script)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, hosts))


def ask_each(
    sessions: Mapping[str, Program], do: str, **request: Any
) -> dict[str, dict[str, Any] | ProgramError]:
    """Send the same request to all sessions concurrently."""
    return ask_own({name: {"do": do, **request} for name in sessions}, sessions)


def ask_own(
    requests: Mapping[str, dict[str, Any]], sessions: Mapping[str, Program]
) -> dict[str, dict[str, Any] | ProgramError]:
    """Send each session its own request concurrently."""

    def one(name: str) -> dict[str, Any] | ProgramError:
        try:
            return sessions[name].ask(**requests[name], patience=PATIENCE)
        except ProgramError as error:
            return error

    with ThreadPoolExecutor(max(len(requests), 1)) as pool, aborted(sessions.values()):
        return dict(zip(requests, pool.map(one, requests), strict=True))
