"""Agents in containers: a container for each, one request and one answer at a time."""

from __future__ import annotations

import base64
import json
import queue
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host

AGENT = Path(__file__).with_name("agent.py")
MARK = "@doctor "
LOADER = "import sys,base64;exec(base64.b64decode(sys.stdin.readline()))"
"""The agent comes by standard input: no command line has to hold it."""
PATIENCE = 60.0
"""Seconds for an answer, with the start of the container."""
LABEL = "kit.doctor"
LONGEST = 240
"""Characters of Docker's error: its beginning says what failed, its end why."""


class SessionError(KitError):
    """The container did not start, or gave no answer."""


class Session:
    """An agent in a container of a host."""

    def __init__(self, host: Host, image: str, name: str, options: Sequence[str]) -> None:
        self.host = host
        self.name = name
        self.command = docker_run(name, image, options, "python3", ("-u", "-c", LOADER))
        self._process = subprocess.Popen(
            [*ssh.command(host.ssh), f"exec {self.command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._said: list[str] = []
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, daemon=True).start()
        self._write(base64.b64encode(AGENT.read_bytes()).decode())

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._answers.put(line.removeprefix(MARK))
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr
        self._said += [line.strip() for line in self._process.stderr]

    def _write(self, line: str) -> None:
        assert self._process.stdin
        with suppress(OSError):  # The missing answer is reported.
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            SessionError: There is none.
        """
        self._write(json.dumps({"do": do, **request}))
        try:
            line = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise SessionError(f"no answer within {PATIENCE:.0f} s") from None
        if line is None:
            self._process.wait()
            said = [each for each in self._said if each and not each.startswith("Unable to find")]
            raise SessionError(_reason(said) or f"exit status {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SessionError(answer["error"])
        return answer

    def close(self) -> None:
        """End the agent; its container is removed by Docker."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()


def _reason(said: Sequence[str]) -> str:
    """Return Docker's error without its hint on --help."""
    lines = [line for line in said if not line.startswith(("See 'docker run", "Run 'docker run"))]
    text = " ".join(lines[-2:]).removeprefix("docker: ")
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def docker_run(
    name: str,
    image: str,
    options: Sequence[str],
    entry: str,
    arguments: Sequence[str],
    *,
    talks: bool = True,
) -> str:
    """Return the command of a container that leaves nothing behind; `talks`: it reads its input."""
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
    sessions: Mapping[str, Session], do: str, **request: Any
) -> dict[str, dict[str, Any] | SessionError]:
    """Send the same request to all sessions concurrently."""
    return ask_own({name: {"do": do, **request} for name in sessions}, sessions)


def ask_own(
    requests: Mapping[str, dict[str, Any]], sessions: Mapping[str, Session]
) -> dict[str, dict[str, Any] | SessionError]:
    """Send a request of its own to each session concurrently."""

    def one(name: str) -> dict[str, Any] | SessionError:
        try:
            return sessions[name].ask(**requests[name])
        except SessionError as error:
            return error

    with ThreadPoolExecutor(max(len(requests), 1)) as pool:
        return dict(zip(requests, pool.map(one, requests), strict=True))
