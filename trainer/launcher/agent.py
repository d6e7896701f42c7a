"""The agent of a script: runs torchrun on this host, in the rounds of the rendezvous."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainer.launcher.errors import FAILURE, MISTAKE, LaunchError
from trainer.launcher.group import LOOK_EVERY, Group
from trainer.launcher.last_failure import given_up
from trainer.launcher.metrics import Metrics
from trainer.launcher.network import free_ports
from trainer.launcher.output import emit, say
from trainer.launcher.program import PROGRAM
from trainer.launcher.reports import ENDS_OF_HANDLERS, LOST, REPORT_EVERY, Report, Round, read_round
from trainer.launcher.script_files import newest_saved
from trainer.launcher.settings import Settings, endpoint_text, read_job, read_nnodes
from trainer.launcher.silence import Silence
from trainer.launcher.tensorflow import tensorflow_environ
from trainer.launcher.torchrun import torchrun_argv

GRACE = 2.0  # Seconds in which workers must end when a round does; then they are killed.


class Agent:
    """Runs one torchrun for each round, and reports how it goes."""

    def __init__(self, environ: Mapping[str, str], folder: Path, command: Sequence[str]) -> None:
        """`folder` is the agent's own, `command` the script and its arguments."""
        self._settings, self._folder, self._command = Settings(environ), folder, command
        self._job, self._address = read_job(self._settings.job), environ["KIT_ADDRESS"]
        self._once = bool(environ.get("KIT_ONE_RUN"))
        self._id = f"{self._settings.host}-{secrets.token_hex(4)}"
        self._state, self._ports = "starts", [0, 0]
        self._round: Round | None = None
        self._starts, self._signal, self._stops = 0, 0, False
        self._failure: LaunchError | None = None
        self._before: dict[str, Any] | None = None  # The failure that ended the round before.
        self._torchrun: asyncio.StreamWriter | None = None  # The process that forks torchrun.
        self._pid = 0
        self._group: Group | None = None
        self._forked, self._ended = asyncio.Event(), asyncio.Event()
        self._rendezvous: asyncio.StreamWriter | None = None
        self._heard = time.monotonic()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics: Metrics | None = None

    async def run(self) -> int:
        """Run until the script is over; return the exit code. Raises LaunchError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, number)
        path = str(self._folder / "torchrun")
        server = await asyncio.start_unix_server(self._serve_torchrun, path)
        argv = [str(PROGRAM), self._job.framework, path]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._start(self._watch_torchrun(process))
            self._start(self._connect())
            self._start(self._watch())
            self._start(self._watch_group())
            self._start(self._watch_silence())
            return await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            if self._state == "runs":
                await self._end_torchrun()
            if process.returncode is None:
                process.kill()
            await process.wait()
            server.close()

    def _start(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._finish(error)

        task = asyncio.get_running_loop().create_task(guarded())
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
        """A signal asks this host to end: torchrun gives its workers the time that they need."""
        self._signal = self._signal or number
        if self.metrics:
            self.metrics.ask_to_end()
        if self._state != "runs":
            self._finish(128 + number)
        self._send(number)
        self._report()

    # ---- torchrun

    async def _watch_torchrun(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        message = f"the process that starts torchrun has ended with exit code {code}"
        raise LaunchError(message, FAILURE, "worker")

    async def _serve_torchrun(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Talk to the process that forks torchrun."""
        self._torchrun = writer
        self._be_idle()
        with suppress(OSError, *ENDS_OF_HANDLERS):
            while line := await reader.readline():
                message = json.loads(line)
                if "pid" in message:
                    self._pid = int(message["pid"])
                    self._forked.set()
                    if self._signal:
                        self._send(self._signal)
                if "failure" in message:
                    self._failure = LaunchError(*message["failure"])
                if "ended" in message:
                    self._after_torchrun(int(message["ended"]))
        writer.close()

    def _be_idle(self) -> None:
        self._state, self._round, self._ports = "idle", None, free_ports(self._address)
        self._report()

    def _begin(self, around: Round) -> None:
        assert self._torchrun
        self._state, self._round, self._failure = "runs", around, None
        self._stops, self._pid = False, 0
        self._forked.clear()
        self._ended.clear()
        say(f"round {around.number} with {', '.join(around.hosts)}")
        own = {
            "KIT_ROUND": around.id,
            "KIT_MASTER_PORT": str(around.ports[1]),
            "KIT_RESTARTS": str(self._starts),
            "KIT_FAILURE": json.dumps(self._before),
        }
        self._starts += 1
        rank = around.agents.index(self._id)
        self._group = Group(around, rank, self._settings.group_wait)
        worker = [str(PROGRAM), "worker", *self._command]
        if self._job.framework == "tensorflow":
            own |= tensorflow_environ(around, rank)
            order: dict[str, Any] = {"argv": worker, "environ": own}
        else:
            argv = torchrun_argv(self._settings.nproc, around, rank, self._job.name)
            argv += ["--log-dir", str(self._folder), *worker]
            store = None if rank else (around.address, around.ports[0])
            order = {"argv": argv, "environ": own, "store": store}
        self._torchrun.write(json.dumps(order).encode() + b"\n")
        self._report()

    def _stop(self, why: str) -> None:
        """Have no workers; they belong to a round that is over."""
        if self._state in ("done", "failed"):
            self._be_idle()
        elif self._state == "runs" and not self._stops:
            self._stops = True
            say(f"ends its workers: {why or 'the round is over'}")
            self._start(self._end_torchrun())

    async def _end_torchrun(self) -> None:
        await self._happens(self._forked)
        for end in (
            partial(self._send, signal.SIGTERM),
            self._kill_workers,
            partial(self._send, signal.SIGKILL),
        ):
            end()
            if await self._happens(self._ended):
                return

    async def _happens(self, event: asyncio.Event) -> bool:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait(), GRACE)
        return event.is_set()

    def _send(self, number: int) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill_workers(self) -> None:
        """Kill the workers, each of which leads a group of processes; torchrun then ends."""
        with suppress(OSError):
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
            for child in children.split():
                os.killpg(int(child), signal.SIGKILL)

    def _after_torchrun(self, code: int) -> None:
        self._ended.set()
        self._pid = 0
        if self._signal:
            self._finish(128 + self._signal)
        if self._stops or self._over.done():
            self._be_idle()
            return
        if code and not self._failure:
            message = f"torchrun has ended with exit code {code}"
            self._failure = LaunchError(message, FAILURE, "worker")
        self._state = "failed" if self._failure else "done"
        if self._failure:
            say(str(self._failure).splitlines()[0], error=True)
            emit("failed", **self._failure.values())
        self._report()

    # ---- The rendezvous

    async def _connect(self) -> None:
        """Hold a connection to the rendezvous; without it, workers go on."""
        lost = 0.0
        while True:
            with suppress(OSError, ValueError, asyncio.TimeoutError):
                opening = asyncio.open_connection(*self._settings.rendezvous)
                reader, self._rendezvous = await asyncio.wait_for(opening, LOST)
                self._report()
                await self._listen(reader)
            if self._rendezvous:
                self._rendezvous.transport.abort()
            self._rendezvous = None
            if not lost or self._heard > lost:
                lost = time.monotonic()
                say("the rendezvous does not answer; workers go on without it")
            silent = time.monotonic() - self._heard
            if self._state == "done" and silent > LOST:
                self._finish(0)
            if self._state != "runs" and silent > self._settings.wait:
                what = f"nothing answered at {endpoint_text(self._settings.rendezvous)}"
                raise LaunchError(f"{what} for {self._settings.wait} s", FAILURE, "rendezvous")
            await asyncio.sleep(0.3)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await asyncio.wait_for(reader.readline(), LOST):
            order, self._heard = json.loads(line), time.monotonic()
            if self._signal or self._over.done():
                continue
            self._before = order.get("failure")
            if order["do"] == "end":
                self._finish(0)
            elif order["do"] == "fail":
                closed = "another host has closed this run: see what others say"
                own = self._failure or LaunchError(closed, FAILURE, "rendezvous")
                self._finish(given_up(order, self._settings.host) or own)
            elif order["do"] == "wait":
                self._stop(str(order["why"]))
            elif (around := read_round(order["round"])) != self._round:
                self._take(around)

    def _take(self, around: Round) -> None:
        """Begin a round, once the workers of another have ended."""
        if self._state == "idle":
            self._begin(around)
        else:
            self._stop(f"round {around.number} begins")

    def _report(self) -> None:
        if self._rendezvous:
            settings = self._settings
            least, most, spares = read_nnodes(os.environ)
            report = Report(
                agent=self._id,
                host=settings.host,
                address=self._address,
                ports=self._ports,
                least=least,
                most=most,
                state=self._state,
                round=self._round,
                hopeless=bool(self._failure and self._failure.code == MISTAKE),
                failure=self._failure.values() if self._failure else None,
                fault=self._failure.fault if self._failure else "",
                saved=newest_saved(),
                leaving=self._signal > 0,
                once=self._once,
                spare=bool(os.environ.get("KIT_SPARE")),
                spares=spares,
            )
            self._rendezvous.write(json.dumps(report).encode() + b"\n")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            self._report()

    async def _watch_silence(self) -> None:
        """Look whether ranks of this host do nothing for long."""
        limit = self._job.quiet
        silence = Silence(self._folder, limit, os.environ.get("KIT_GPUS", ""))
        while limit:
            await asyncio.sleep(min(LOOK_EVERY * 10, limit / 10))
            if pid := self._pid:
                # nvidia-smi and py-spy take seconds.
                seconds = await asyncio.to_thread(silence.look, pid)
                if self.metrics:
                    self.metrics.silent = seconds

    async def _watch_group(self) -> None:
        """Look whether the processes of this host are connected with others of the script."""
        one = self._job.framework == "tensorflow" or self._settings.nproc == 1
        while True:
            await asyncio.sleep(LOOK_EVERY)
            group, pid = self._group, self._pid
            if group and pid and not (one and group.only_host):
                # With thousands of connections, as on a host's own network, it takes its time.
                joined = await asyncio.to_thread(group.look, pid)
                if joined is not None and group is self._group and pid == self._pid:
                    self._group = None if joined else group
                    group.tell(joined)
