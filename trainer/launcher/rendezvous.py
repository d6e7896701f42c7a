"""The rendezvous: serves the rounds of a script."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from trainer.launcher.network import listen, own_address
from trainer.launcher.output import say
from trainer.launcher.process import raise_open_files, stay_unprivileged
from trainer.launcher.reports import ENDS_OF_HANDLERS, HOST_SILENT, LOST, read_report
from trainer.launcher.rounds import Rounds
from trainer.launcher.settings import endpoint_text, parse_endpoint, read_variable

ABSENT = 10.0  # Seconds without a host after which the rendezvous ends; the engine restarts it.
# The same if it has given up hosts: Docker waits up to a minute before it starts a container again.
REMEMBERED = 120.0
TICK = 0.1  # Seconds between two looks at the clock.


class RendezvousServer:
    """Takes the reports of the hosts, and answers each by an order."""

    def __init__(self) -> None:
        self._rounds = Rounds(time.monotonic)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        self._ticked = time.monotonic()
        self._stood = float("-inf")  # The last time at which this process stood still.
        self._used = 0.0  # The last time at which a host was there.

    async def serve(self, listener: socket.socket) -> int:
        """Serve until a run is over or SIGTERM or SIGINT arrives; return the signal, or 0."""
        stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        server = await asyncio.start_server(self._host, sock=listener)
        watch = asyncio.create_task(self._watch(stop))
        try:
            return await stopped
        finally:
            watch.cancel()
            server.close()
            for writer in self._writers.values():
                writer.transport.abort()

    async def _watch(self, stop: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._notice_time()
            for agent, why in self._rounds.silent():
                self._lose(agent, why)
            self._rounds.decide()
            self._tell()
            absent = REMEMBERED if self._rounds.given_up else ABSENT
            if self._rounds.hosts:
                self._used = self._ticked
            elif self._used and self._ticked - self._used > absent:
                stop(0)

    def _notice_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked > HOST_SILENT / 2:
            self._stood = now
            self._rounds.excuse()
        self._ticked = now

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent = ""
        with suppress(OSError, ValueError, TypeError, RecursionError, *ENDS_OF_HANDLERS):
            while line := await reader.readline():
                report = read_report(line)
                agent = report.agent
                self._writers[agent] = writer
                self._rounds.report(report)
                self._tell(answer=agent)
        self._notice_time()
        # After a halt, a host has connected anew, and this connection is an old one.
        if self._writers.get(agent) is writer and time.monotonic() - self._stood > LOST:
            self._lose(agent, "has closed its connection")
            self._tell()
        writer.close()

    def _lose(self, agent: str, why: str) -> None:
        self._rounds.lose(agent, why)
        self._sent.pop(agent, None)
        if writer := self._writers.pop(agent, None):
            writer.transport.abort()

    def _tell(self, answer: str = "") -> None:
        """Send each host a new order, and the present one to the host that has just reported."""
        for agent, writer in self._writers.items():
            order = self._rounds.order(agent)
            if agent == answer or order != self._sent.get(agent):
                self._sent[agent] = order
                writer.write(json.dumps(order).encode() + b"\n")


def serve_rendezvous() -> None:
    """Serve the rendezvous, only at its own address, until its run is over or a signal arrives."""
    stay_unprivileged()
    raise_open_files()  # Each host holds a connection.
    host, port = parse_endpoint(read_variable(os.environ, "KIT_RENDEZVOUS"))
    address = own_address([host])
    listener = listen(address, port)
    say(f"serves the rendezvous on {endpoint_text((address, port))}")
    received = asyncio.run(RendezvousServer().serve(listener))
    reason = signal.Signals(received).name if received else "the end of its run"
    say(f"ends the rendezvous on {reason}")
