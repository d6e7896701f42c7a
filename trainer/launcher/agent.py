"""The agent of a script: runs torchrun on this host, in the rounds of the coordinator."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainer.group.messages import LOST, Group, Halt, Order, Report
from trainer.launcher.connections import LOOK_EVERY, Connections, children_of
from trainer.launcher.errors import FAILURE, MISTAKE, LaunchError
from trainer.launcher.host_agent import HostAgent
from trainer.launcher.last_failure import error_of, halt_of
from trainer.launcher.network import hold_port
from trainer.launcher.output import emit, say
from trainer.launcher.program import PROGRAM
from trainer.launcher.script_files import newest_saved
from trainer.launcher.settings import (
    Settings,
    endpoint_text,
    parse_endpoint,
    read_job,
    read_nnodes,
)
from trainer.launcher.silence import Silence
from trainer.launcher.tensorflow import tensorflow_environ
from trainer.launcher.torchrun import torchrun_argv

GRACE = 2.0  # Seconds in which workers must end after the end of a round; then they are killed.


class Agent(HostAgent):
    """Runs one torchrun for each round, and reports its state."""

    def __init__(self, environ: Mapping[str, str], folder: Path, command: Sequence[str]) -> None:
        """`folder` is for this agent alone; `command` has the script and its arguments."""
        super().__init__(environ, folder)
        self._settings, self._command = Settings(environ), command
        self._job, self._address = read_job(self._settings.job), environ["KIT_ADDRESS"]
        self._is_tensorflow = self._job.framework == "tensorflow"
        self._state = "starts"  # starts, idle, runs, done.
        self._held: list[socket.socket] = []  # The ports of the next round, or of this one.
        self._round: Group | None = None  # The last round that this host has joined.
        self._left = 0  # The generation of the last round that this host has left.
        self._starts, self._stops = 0, False
        self._failure: LaunchError | None = None  # Of the last round.
        self._forks: Process | None = None  # The process that forks torchrun.
        self._torchrun: asyncio.StreamWriter | None = None  # Its connection.
        self._pid = 0
        self._connections: Connections | None = None
        self._forked, self._ended = asyncio.Event(), asyncio.Event()

    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._fork_torchrun(), self._watch_connections(), self._watch_silence()]

    def report(self) -> Report:
        """The state of this host."""
        last, failure = self._round, self._failure
        ports = [each.getsockname()[1] for each in self._held] or [0, 0]
        return Report(
            agent=self._id,
            host=self._host,
            workers=self._settings.nproc,
            store=endpoint_text((self._address, ports[0])),
            port=ports[1],
            generation=self._joined,
            members=tuple(each.agent for each in last.members) if last else (),
            number=last.number if last else 0,
            left=self._left,
            heard=self._newest,
            ready=self._state == "idle",
            starting=self._state == "starts",
            done=self._state == "done",
            spare=self._spare,
            bounds=read_nnodes(self._environ),
            failure=halt_of(failure) if failure else None,
            content=newest_saved(),
            once=bool(self._environ.get("KIT_ONE_RUN")),
        )

    def _is_idle(self) -> bool:
        return self._state != "runs"

    def _ranks(self) -> Sequence[int]:
        with suppress(OSError):
            return children_of(self._pid) if self._pid else ()
        return ()

    def _look(self) -> None:
        if self._state == "done" and time.monotonic() - self._heard > LOST:
            self._finish(0)

    def _leave(self, number: int) -> None:
        """Forward a signal that ends this host to torchrun, which waits for its workers."""
        super()._leave(number)
        if self._state != "runs":
            self._finish(self._exit_code)
        self._send(number)

    def _obey(self, order: Order) -> None:
        if self._signal or self._over.done():
            return
        if order.kind == "end":
            self._finish(self._error(order.halt) if order.halt else 0)
        elif order.kind == "join" and order.group and order.generation > self._joined:
            if self._state == "idle":
                self._begin(order.group, order.failure)
            else:  # It runs a round that the coordinator had given up.
                self._stop(f"round {order.group.number} begins")
        elif order.kind == "abort" and self._joined <= order.generation:
            self._stop(order.why)

    @property
    def _joined(self) -> int:
        """The generation of the last round."""
        return self._round.generation if self._round else 0

    def _error(self, halt: Halt) -> LaunchError:
        """The error with which this host ends: preferably its own, which has all lines."""
        own = None if halt.code == MISTAKE else self._failure
        return own or error_of(halt, self._host)

    # ---- torchrun

    async def _fork_torchrun(self) -> None:
        """Run the process that forks torchrun; it connects to this one."""
        argv = [str(PROGRAM), self._job.framework, str(self._folder / "workers")]
        self._forks = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=subprocess.DEVNULL, start_new_session=True
        )
        code = await self._forks.wait()
        message = f"the process that starts torchrun has ended with exit code {code}"
        raise LaunchError(message, FAILURE, "worker")

    async def _end_workers(self) -> None:
        if self._state == "runs":
            await self._end_torchrun()
        if self._starts:
            await self._copied(range(1 if self._is_tensorflow else self._settings.nproc))
        if self._forks:
            if self._forks.returncode is None:
                self._forks.kill()
            await self._forks.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Process the messages of that process."""
        self._torchrun = writer
        self._be_idle()
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

    def _be_idle(self) -> None:
        for each in self._held:
            each.close()
        self._held = [hold_port(self._address) for _ in range(2)]
        self._state, self._left = "idle", self._joined
        self._report()
        if self._order.kind == "join":
            self._obey(self._order)

    def _begin(self, around: Group, before: Halt | None) -> None:
        assert self._torchrun
        self._state, self._round, self._failure = "runs", around, None
        self._stops, self._pid = False, 0
        self._forked.clear()
        self._ended.clear()
        say(f"round {around.number} with {around.names}")
        rank = around.place(self._id)
        self._connections = Connections(around, rank, self._settings.group_wait)
        order = self._order_for(around, rank, before)
        self._starts += 1
        self._torchrun.write(json.dumps(order).encode() + b"\n")
        self._report()

    def _order_for(self, around: Group, rank: int, before: Halt | None) -> dict[str, Any]:
        """The message for a round to the process that forks torchrun."""
        first = around.members[0]
        own = {
            "KIT_ROUND": str(around.generation),
            "KIT_MASTER_PORT": str(first.port),
            "KIT_RESTARTS": str(self._starts),
            "KIT_FAILURE": json.dumps(asdict(before) if before else None),
        }
        worker = [str(PROGRAM), "worker", *self._command]
        if self._is_tensorflow:
            return {"argv": worker, "environ": own | tensorflow_environ(around, rank)}
        argv = torchrun_argv(self._settings.nproc, around, rank, self._job.name)
        argv += ["--log-dir", str(self._folder), *worker]
        store = None if rank else parse_endpoint(first.store)
        return {"argv": argv, "environ": own, "store": store}

    def _stop(self, why: str) -> None:
        """Stop the workers, whose round is over."""
        if self._state == "done":
            self._be_idle()
        elif self._state == "runs" and not self._stops:
            self._stops = True
            say(f"stops its workers: {why or 'the round is over'}")
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
        """Kill the workers with their process groups; torchrun then ends."""
        with suppress(OSError):
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
            for child in children.split():
                os.killpg(int(child), signal.SIGKILL)

    def _after_torchrun(self, code: int) -> None:
        self._ended.set()
        self._pid = 0
        if self._signal:
            self._finish(self._exit_code)
        if self._stops or self._over.done():
            self._failure = None
            self._be_idle()
            return
        if code and not self._failure:
            message = f"torchrun has ended with exit code {code}"
            self._failure = LaunchError(message, FAILURE, "worker")
        if not self._failure:
            self._state = "done"
            self._report()
            return
        say(str(self._failure).splitlines()[0], error=True)
        emit("failed", **self._failure.values())
        self._be_idle()

    # ---- Observation of its workers

    async def _watch_silence(self) -> None:
        """Check at intervals whether ranks of this host are idle for too long."""
        limit = self._job.quiet
        silence = Silence(self._folder, limit, self._environ.get("KIT_GPUS", ""))
        while limit:
            await asyncio.sleep(min(LOOK_EVERY * 10, limit / 10))
            if pid := self._pid:
                # nvidia-smi and py-spy take seconds.
                seconds = await asyncio.to_thread(silence.look, pid)
                if self.metrics:
                    self.metrics.silent = seconds

    async def _watch_connections(self) -> None:
        """Check at intervals whether this host's processes are connected to others of the job."""
        one = self._is_tensorflow or self._settings.nproc == 1
        while True:
            await asyncio.sleep(LOOK_EVERY)
            found, pid = self._connections, self._pid
            if found and pid and not (one and found.only_host):
                # With thousands of connections, as on a host's own network, this takes long.
                joined = await asyncio.to_thread(found.look, pid)
                if joined is not None and found is self._connections and pid == self._pid:
                    self._connections = None if joined else found
                    found.tell(joined)
