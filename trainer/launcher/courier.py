"""The coordinator's side of notifications: starts and feeds the process that sends them."""

import asyncio
import json
import os
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from trainer.group.messages import Notice
from trainer.group.notices import Notices
from trainer.launcher.output import say
from trainer.launcher.program import PROGRAM

LAST_TRIES = 8.0  # Seconds for remaining notices after SIGTERM: Docker kills containers after 10.
MOST_LEFT = 200  # Number of notices that are not settled.
STARTS = 3  # Number of starts of the process, if it ends by itself.


class Courier:
    """Passes notices to the process that sends them, and keeps those that are not settled."""

    def __init__(self, environ: Mapping[str, str], notices: Notices) -> None:
        self._wanted = bool(environ.get("KIT_NOTIFY"))
        self._notices = notices
        self._left: dict[str, dict[str, Any]] = {}  # Notices that are not settled, by id.
        self._writer: asyncio.StreamWriter | None = None
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        if self._wanted:
            notices.send = self.send

    def send(self, notice: Notice) -> None:
        """Pass a notice."""
        if len(self._left) >= MOST_LEFT:
            self._warn(f"the notification of {notice.kind} is not sent: too many are pending")
            return
        if not self._wanted:
            why = "the process that sends notifications has ended"
            self._warn(f"the notification of {notice.kind} is not sent: {why}")
            return
        self._left[notice.id] = {"time": round(time.time(), 3), **asdict(notice)}
        self._write(self._left[notice.id])

    def _warn(self, fault: str) -> None:
        say(fault, error=True)
        self._notices.fault = fault

    def busy(self) -> bool:
        """Whether notices are being sent."""
        return bool(self._left)

    def start(self) -> None:
        """Start the process, if the job notifies anybody."""
        if self._wanted:
            self._task = asyncio.create_task(self._run())

    async def end(self, seconds: float) -> None:
        """End the process; wait at most `seconds` for the remaining notices."""
        deadline = time.monotonic() + seconds
        while self._task and not self._task.done() and self._left and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for each in self._left.values():
            say(f"ends before every receiver was notified of {each['kind']}", error=True)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _write(self, notice: Mapping[str, Any]) -> None:
        if self._writer:
            self._writer.write(json.dumps(notice).encode() + b"\n")

    async def _run(self) -> None:
        for _ in range(STARTS):
            ours, theirs = socket.socketpair()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(PROGRAM), "notifier"),
                stdin=theirs.fileno(),
                stdout=None,
                env=os.environ,
                start_new_session=True,
            )
            theirs.close()
            reader, self._writer = await asyncio.open_connection(sock=ours)
            for each in self._left.values():
                self._write(each)
            await self._take(reader)
            self._writer.close()
            self._writer = None
            code = await self._process.wait()
            what = f"the process that sends notifications has ended with exit code {code}"
            say(what, error=True)
        self._wanted = False
        self._left.clear()

    async def _take(self, reader: asyncio.StreamReader) -> None:
        """Process reports of sent and given-up notices until the process has ended."""
        with suppress(OSError, ValueError, KeyError):
            while line := await reader.readline():
                content = json.loads(line)
                if isinstance(content, dict):
                    self._notices.fault = str(content["fault"])
                    continue
                self._left.pop(str(content), None)
                self._notices.note_sent(str(content))
