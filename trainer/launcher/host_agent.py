"""The common base of the agents of a training and of a script.

It holds a connection to the coordinator, repeats the host's report, and receives orders. While the
coordinator does not answer, the workers continue.
"""

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.group.messages import (
    LONGEST,
    LOST,
    REPORT_EVERY,
    Order,
    Report,
    decode,
    encode,
    name_agent,
    note_task,
    served,
)
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.failures import exception_in
from trainer.launcher.limits import LOOKS, LimitWatch, tell_end
from trainer.launcher.metrics import Metrics, serve_metrics
from trainer.launcher.output import emit, say
from trainer.launcher.settings import endpoint_text, parse_endpoint, read_job

LAST_LINES = 2.0
"""Seconds to wait for the last lines of workers: what they have started may hold their streams."""


class HostAgent(ABC):
    """The agent of this host; a subclass drives its workers."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        """`folder` is for this agent alone."""
        self._environ, self._folder = environ, folder
        self._host, self._spare = environ["KIT_HOST"], bool(environ.get("KIT_SPARE"))
        self._id = name_agent(self._host, time.time_ns())
        self._endpoint = parse_endpoint(environ["KIT_RENDEZVOUS"])
        self._patience = float(environ.get("KIT_RENDEZVOUS_TIMEOUT") or "300")
        self._connection: asyncio.StreamWriter | None = None
        self._order, self._heard = Order(), time.monotonic()
        self._unanswered = False  # Whether it has logged that the coordinator does not answer.
        self._newest = 0  # The newest generation that an order has named.
        self._told: tuple[str, ...] = ()  # The notices that were sent, for a new coordinator.
        self._fault = ""  # Why a notification could not be sent.
        self._signal = 0
        self.limits = LimitWatch(read_job(Path(environ["KIT_JOB"])), environ)
        self.limit = ""  # The key of the job by which it ends.
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.metrics: Metrics | None = None

    # ---- Methods of a subclass

    @abstractmethod
    def report(self) -> Report:
        """The state of this host."""

    @abstractmethod
    def _obey(self, order: Order) -> None:
        """Execute a new order."""

    @abstractmethod
    def _look(self) -> None:
        """Check timeouts; called before each report."""

    @abstractmethod
    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks of this agent until the training is over, besides its reports."""

    @abstractmethod
    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Communicate with a process of this host; OSError and ValueError close the connection."""

    @abstractmethod
    async def _end_workers(self) -> None:
        """End all processes."""

    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether this host has no work without the coordinator."""

    @abstractmethod
    def _ranks(self) -> Sequence[int]:
        """The process ids of its ranks."""

    def is_complete(self) -> bool:
        """Whether the job has done all of its work: no limit has ended it."""
        return False

    # ---- The run

    async def run(self) -> int:
        """Run until the training is over; return the exit code. Raises LaunchError."""
        path = str(self._folder / "workers")
        server = await asyncio.start_unix_server(self._serve_process, path, limit=LONGEST)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, number)
        try:
            works = (self._connect(), self._watch(), self._watch_work())
            for work in (*self._works(), *works):
                self._start(work)
            return await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._end_workers()
            server.close()
            await served(self._serving)

    async def _copied(self, local_ranks: Iterable[int]) -> None:
        """Wait until the last lines of workers are copied: a container ends with this process."""
        files = [self._folder / f"local-{each}" for each in local_ranks]
        ends = [asyncio.to_thread(exception_in, each, 0, LAST_LINES) for each in files]
        await asyncio.gather(*ends)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        async def act() -> None:
            try:
                await work
            except Exception as error:
                self._finish(error)

        task = asyncio.get_running_loop().create_task(act())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, result: int | Exception) -> None:
        if self._over.done():
            return
        if isinstance(result, int):
            self._over.set_result(result)
        else:
            self._over.set_exception(result)

    def _leave(self, number: int) -> None:
        """Handle a signal that asks this host to end."""
        self._signal = self._signal or number
        if self.metrics:
            self.metrics.ask_to_end()
        self._report()

    @property
    def _exit_code(self) -> int:
        """The exit code of a host that was asked to end."""
        return 0 if self.limit else 128 + self._signal

    def _see_limit(self, order: Order) -> None:
        """End this host as after a signal, if the job has reached a limit."""
        if self._signal or self._over.done() or self.is_complete():
            return
        self.limit = self.limits.reached(order)
        if self.limit:
            self.limits.begin_end(self.limit)
            self._leave(signal.SIGTERM)

    async def _watch_work(self) -> None:
        """Check at intervals whether this host computes, if the job has an `idle` limit."""
        while idle := self.limits.job.idle:
            await asyncio.sleep(min(LOOKS, idle / 10))
            report = self.report()
            place = (report.generation, report.reached)
            await asyncio.to_thread(self.limits.work.look, self._ranks(), place)

    async def _serve_process(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        note_task(self._serving)
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            await self._talk(reader, writer)
        writer.close()

    # ---- The coordinator

    async def _connect(self) -> None:
        """Hold a connection to the coordinator; report, and receive its orders."""
        while True:
            with suppress(OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                opening = asyncio.open_connection(*self._endpoint, limit=LONGEST)
                reader, self._connection = await asyncio.wait_for(opening, LOST)
                self._report()
                await self._listen(reader)
            if self._over.done():  # wait_for before Python 3.12 may swallow a cancellation.
                return
            if self._connection:
                self._connection.transport.abort()
            self._connection = None
            if not self._unanswered:
                self._unanswered = True
                gone = "does not answer: hosts that train continue, others wait for it"
                say(f"the coordinator {gone}")
            if self._is_idle() and time.monotonic() - self._heard > self._patience:
                what = f"nothing answered at {endpoint_text(self._endpoint)}"
                raise LaunchError(f"{what} for {self._patience:.0f} s", FAILURE, "rendezvous")
            await asyncio.sleep(0.3)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Receive orders until the connection is lost."""
        while not self._over.done():
            if not (line := await asyncio.wait_for(reader.readline(), LOST)):
                return
            order, self._heard = decode(Order, line), time.monotonic()
            self._told = order.told
            self._warn(order.fault)
            order = replace(order, told=(), fault="")
            if self._unanswered:
                self._unanswered = False
                say("the coordinator is back")
            self.limits.learn(order)
            self._see_limit(order)
            if order != self._order:
                self._order, self._newest = order, max(self._newest, order.generation)
                self._obey(order)

    def _warn(self, fault: str) -> None:
        """Log why a notification failed: people read this log, not the coordinator's."""
        if fault and fault != self._fault:
            self._fault = fault
            say(f"warning: {fault}", error=True)

    def _report(self) -> None:
        if self._connection:
            stopped = self._signal > 0 and not self.limit
            state = self.limits.timed(self.report(), stopped=stopped)
            state = replace(state, ends=self.limit, told=self._told, stops=self._signal > 0)
            self._connection.write(encode(state))

    async def _watch(self) -> None:
        """Repeat the report."""
        while True:
            await asyncio.sleep(REPORT_EVERY)
            self._look()
            self._see_limit(Order())
            if self.limits.overdue():
                say("its processes have had their stop_grace_period, and are killed", error=True)
                self._finish(self._exit_code)
            self._report()


async def run_host(agent: HostAgent, folder: Path, ended: str) -> int:
    """Run an agent, with metrics if the job has them; return its exit code. Raises LaunchError.

    `ended` is the beginning of the log line after a signal.
    """
    if at := os.environ.get("KIT_METRICS_AT"):
        agent.metrics = serve_metrics(parse_endpoint(at), folder)
    code = await agent.run()
    emit("ended", exit_code=code)
    limited = bool(agent.limit) and not agent.is_complete()
    if limited:
        tell_end(agent.limit, agent.limits.job)
    elif code > 128:
        say(f"{ended} on {signal.Signals(code - 128).name}")
    if agent.metrics and (limited or code > 128):
        await asyncio.to_thread(agent.metrics.wait_for_reader)
    return code
