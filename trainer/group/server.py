"""The coordinator of a job: a server that receives hosts' reports, and sends them orders.

The decisions are in decisions.py. It keeps nothing on a disk, and may die at any time: the
group that trains does not need it, and its successor gets the whole state from reports.
"""

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from trainer.group.decisions import Decisions
from trainer.group.messages import (
    HOST_SILENT,
    LONGEST,
    LOST,
    Order,
    Report,
    decode,
    encode,
    note_task,
    served,
)

TICK = 0.1
"""Seconds between two checks of the time."""
HELD = 660.0
"""Seconds for which the coordinator of a run that is over stays while notices are being sent."""
FAREWELL = 2.0
"""Seconds by which a signal may reach this process before it reaches the hosts."""


class Server:
    """Serves the hosts of a job."""

    def __init__(self, decisions: Decisions, busy: Callable[[], bool] = lambda: False) -> None:
        """`busy`: whether notices are being sent."""
        self._decisions, self._busy = decisions, busy
        self._seen: dict[str, float] = {}  # Time of each host's last report.
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sent: dict[str, Order] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._ticked = self._used = time.monotonic()  # Times of the last tick, and of a host.
        self._stood = float("-inf")  # The last time at which this process was found suspended.
        self._came = False  # Whether any host has taken part: those that prepare only ask.

    async def serve(self, listener: socket.socket, begun: Callable[[], object]) -> int:
        """Serve until a run is over or SIGTERM or SIGINT arrives; return the signal, or 0.

        `begun` is called when hosts are served and signals are handled. After a signal, continue to
        serve hosts that were asked to end: they need it to save.
        """
        stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        server = await asyncio.start_server(self._host, sock=listener, limit=LONGEST)
        watch = asyncio.create_task(self._watch(stop))
        begun()
        try:
            received = await stopped
            if received:
                await self._see_off()
            return received
        finally:
            watch.cancel()
            server.close()
            for writer in self._writers.values():
                writer.close()
            await served(self._serving)

    async def _see_off(self) -> None:
        """Return when no host is connected, or no connected host is about to end."""
        began = time.monotonic()
        while self._seen:
            ends = any(report.stops for report in self._decisions.hosts.values())
            if not ends and time.monotonic() - began > FAREWELL:
                return
            await asyncio.sleep(TICK)

    async def _watch(self, stop: Callable[[int], None]) -> None:
        """Detect silent hosts, and the end of the run."""
        while True:
            await asyncio.sleep(TICK)
            self._notice_time()
            for agent, seen in [*self._seen.items()]:
                if self._ticked - seen > HOST_SILENT:
                    self._lose(agent, f"is silent for {self._ticked - seen:.1f} s")
            self._tell()
            if self._seen or not self._came:
                self._used = self._ticked
            alone = self._ticked - self._used
            if alone > self._decisions.patience and (alone > HELD or not self._busy()):
                stop(0)

    def _notice_time(self) -> None:
        """Detect a pause of this process, in which hosts only seem to be silent."""
        now = time.monotonic()
        if now - self._ticked > HOST_SILENT / 2:
            self._stood, self._seen = now, dict.fromkeys(self._seen, now)
        self._ticked = now

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one host's connection."""
        note_task(self._serving)
        agent = ""
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                report = decode(Report, line)
                agent = report.agent
                self._seen[agent], self._writers[agent] = time.monotonic(), writer
                self._decisions.report(report)
                self._came |= agent in self._decisions.hosts and not report.asks
                for gone in self._seen.keys() - self._decisions.hosts.keys():
                    self._forget(gone)
                self._tell(answer=agent)
        self._notice_time()
        # After a pause of this process, the host has connected again and is about to report.
        if self._writers.get(agent) is writer and self._ticked - self._stood > LOST:
            self._lose(agent, "has closed its connection")
            self._tell()
        writer.close()

    def _tell(self, answer: str = "") -> None:
        """Send new orders, and the present one to the host that has just reported."""
        notices = self._decisions.notices
        for agent, present in self._decisions.orders().items():
            order = replace(present, told=notices.told, fault=notices.fault)
            if agent == answer or order != self._sent.get(agent):
                self._sent[agent] = order
                if writer := self._writers.get(agent):
                    writer.write(encode(self._decisions.timed(order)))

    def _lose(self, agent: str, why: str) -> None:
        self._forget(agent)
        self._decisions.lose(agent, why)

    def _forget(self, agent: str) -> None:
        self._seen.pop(agent, None)
        self._sent.pop(agent, None)
        if writer := self._writers.pop(agent, None):
            writer.close()
