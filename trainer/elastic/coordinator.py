"""The coordinator of a job: a server that hosts report to, and that tells them what to do.

It decides nothing by itself (decisions.py), keeps nothing on a disk, and may die at any time: the
group that trains does not need it, and reports tell its successor all.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from trainer.elastic.decisions import Decisions
from trainer.elastic.messages import LONGEST, Order, Report, decode, encode, note_task, served

SILENT = 1.6
"""Seconds without a report after which a host is lost; it reports every `agent.EVERY`."""
TICK = 0.1
"""Seconds between two looks at the clock."""
CHANCES = 10**6
"""Numbers of which the next group has one, if the clock does not tell it."""
ABSENT = 10.0
"""Seconds without a host after which the coordinator of a run that is over ends."""


class Coordinator:
    """Serves the hosts of a job."""

    def __init__(self, hosts: tuple[int, int, int], say: Callable[[str], None]) -> None:
        """`hosts` are the least and the most that train together, and the number of spares."""
        chance = partial(random.randrange, CHANCES)
        self.decisions = Decisions(time.monotonic, *hosts, time.time, chance, say)
        self._seen: dict[str, float] = {}  # Time of each host's last report.
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sent: dict[str, Order] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._used = False

    async def serve(self, listener: socket.socket) -> int:
        """Serve until a run is over or SIGTERM or SIGINT arrives; return the signal, or 0."""
        stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        server = await asyncio.start_server(self._host, sock=listener, limit=LONGEST)
        watch = asyncio.create_task(self._watch(stop))
        try:
            return await stopped
        finally:
            watch.cancel()
            server.close()
            for writer in self._writers.values():
                writer.close()
            await served(self._serving)

    async def _watch(self, stop: Callable[[int], None]) -> None:
        """Look for silent hosts, and for the end of the run."""
        last, empty = time.monotonic(), time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            if now - last > SILENT / 2:  # It was this process that stood still, not the hosts.
                self._seen = dict.fromkeys(self._seen, now)
            last = now
            for agent, seen in [*self._seen.items()]:
                if now - seen > SILENT:
                    self._lose(agent, f"is silent for {now - seen:.1f} s")
            self._tell()
            self._used |= bool(self._seen)
            empty = now if self._seen or not self._used else empty
            if now - empty > ABSENT and self.decisions.end:
                stop(0)

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one host's connection."""
        note_task(self._serving)
        agent = ""
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                report = decode(Report, line)
                agent = report.agent
                self._seen[agent], self._writers[agent] = time.monotonic(), writer
                self.decisions.report(report)
                for gone in self._seen.keys() - self.decisions.hosts.keys():
                    self._forget(gone)
                self._tell(answer=agent)
        if agent and self._writers.get(agent) is writer:
            self._lose(agent, "has closed its connection")
            self._tell()
        writer.close()

    def _tell(self, answer: str = "") -> None:
        """Send new orders, and the present one to the host that has just reported."""
        for agent, order in self.decisions.orders().items():
            if agent == answer or order != self._sent.get(agent):
                self._sent[agent] = order
                if writer := self._writers.get(agent):
                    writer.write(encode(order))

    def _lose(self, agent: str, why: str) -> None:
        self._forget(agent)
        self.decisions.lose(agent, why)

    def _forget(self, agent: str) -> None:
        self._seen.pop(agent, None)
        self._sent.pop(agent, None)
        if writer := self._writers.pop(agent, None):
            writer.close()


def serve(listener: socket.socket, hosts: tuple[int, int, int], say: Callable[[str], None]) -> int:
    """Serve a job's hosts at a listening socket; see `Coordinator`."""
    return asyncio.run(Coordinator(hosts, say).serve(listener))
