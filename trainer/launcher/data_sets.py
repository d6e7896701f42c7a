"""Data sets: the data agent of this host fetches them before the training starts."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from trainer.launcher.disk import show_bytes
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import emit, say
from trainer.launcher.settings import Settings
from trainer.launcher.waiting import BrokenAnswerError, until_answered

SILENT = 30  # Seconds without a line after which the agent counts as dead; it sends one per second.


class DataAgent(HTTPConnection):
    """A connection to the data agent's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=SILENT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, whose path may be longer than an address: 107 bytes (unix(7))."""
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(SILENT)
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)


class FetchProgress:
    """Logs the agent's progress: at once if something changes, otherwise every 10 s."""

    def __init__(self) -> None:
        self._last, self._due = "", 0.0
        self._shown: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether the agent has reported anything."""
        return bool(self._shown)

    def show(self, line: Mapping[str, Any]) -> None:
        """Log a report of the agent if it is due."""
        kind = f"{line['name']}@{line['version']} {line['state']} {line.get('note', '')}"
        if kind == self._last and time.monotonic() < self._due:
            return
        self._last, self._due = kind, time.monotonic() + 10
        numbers = {key: int(line.get(key) or 0) for key in ("bytes", "total", "rate", "peers")}
        self._shown = {"data_set": line["name"], "version": line["version"], **numbers}
        emit("fetch", state=line["state"], **self._shown)
        text = f"data set {line['name']}@{line['version']}: {line['state']}"
        if line["total"]:
            text += f" {show_bytes(line['bytes'])} of {show_bytes(line['total'])}"
        if line["rate"]:
            left = (line["total"] - line["bytes"]) / line["rate"]
            peers = "1 host" if line["peers"] == 1 else f"{line['peers']} hosts"
            source = peers if line["peers"] else "the data server"
            text += f", {show_bytes(line['rate'])}/s from {source}, {left:.0f} s left"
        say(f"{text} ({line['note']})" if line.get("note") else text)

    def end(self) -> None:
        """Report the end of the last fetch, if there was one."""
        if self._shown:
            emit("fetch", state="ready", **(self._shown | {"rate": 0}))


def fetch_data(settings: Settings, job: str) -> dict[str, str]:
    """Wait until this host has the job's data sets; return the folder of each.

    The connection, and a lock on each data set, stay open in the programs that replace this one.
    Until they close, the agent removes none of these data sets.
    """
    if not settings.data_sets:
        return {}
    return until_answered(
        partial(ask_data_agent, settings, job),
        ("the data agent", str(settings.data_socket), "no data agent answered at"),
        settings.wait,
        "is the data agent of this host running, and its cache mounted here?",
        "data",
    )


def ask_data_agent(settings: Settings, job: str) -> dict[str, str]:
    """Request the job's data sets from the agent, and wait. OSError: try again later."""
    agent, progress = DataAgent(settings.data_socket), FetchProgress()
    body = json.dumps({"who": job, "data": settings.data_sets})
    agent.request("POST", "/use", body, {"Content-Type": "application/json"})
    try:
        return follow_fetch(settings, agent, progress)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise (BrokenAnswerError if progress.begun else OSError)(reason) from error


def follow_fetch(settings: Settings, agent: DataAgent, progress: FetchProgress) -> dict[str, str]:
    """Log the agent's progress until the data sets have arrived; the connection stays open."""
    sock, answer = agent.sock, agent.getresponse()
    if answer.status != 200:
        found = json.loads(answer.read())
        raise LaunchError(f"KIT_DATA_SETS: {found['error']}; {found['fix']}", kind="data")
    while line := answer.readline():
        found = json.loads(line)
        if found["state"] == "failed":
            message = f"{found['message']}; {found['fix']}"
            raise LaunchError(message, FAILURE, "data")
        if found["state"] == "ready":
            progress.end()
            os.set_inheritable(os.dup(sock.fileno()), True)
            return {name: hold(settings, found, path) for name, path in found["paths"].items()}
        progress.show(found)
    raise OSError("the data agent has ended")


def hold(settings: Settings, answer: Mapping[str, Any], path: str) -> str:
    """Lock a data set against removal; return its folder as this container sees it."""
    with suppress(ValueError):  # The path is in the store, which is mounted at the same place.
        path = str(settings.data_socket.parent / Path(path).relative_to(answer["cache"]))
    mark = Path(path).parent / "COMPLETE"
    try:
        handle = os.open(mark, os.O_RDONLY)
        os.set_inheritable(handle, True)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        what = f"{mark} cannot be read ({error.strerror})"
        fix = "mount the data agent's folder into this container, and see KIT_DATA_SOCKET"
        raise LaunchError(f"{what}; {fix}", FAILURE, "data") from error
    return path
