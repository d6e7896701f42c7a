"""The agent of a host: starts the workers of the built-in training, watches them, and reports.

    python -m trainer.elastic.agent -m trainer.train    as launch.py becomes it, with its variables

It forwards the coordinator's orders to the workers. While it cannot reach the coordinator, the
workers go on; a worker that ends is started anew, and prepares itself while the others train.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainer.checkpoints.layout import newest_step
from trainer.contract.job import Faults
from trainer.elastic import pulse
from trainer.elastic.policy import Policy
from trainer.elastic.pulse import Patience
from trainer.elastic.workers import Place, Worker, read_place
from trainer.group.messages import (
    LONGEST,
    LOST,
    REPORT_EVERY,
    Halt,
    Order,
    Report,
    decode,
    encode,
    name_agent,
    note_task,
    served,
)
from trainer.launcher.errors import FAILURE, LaunchError, guarded
from trainer.launcher.failures import exception_in, worker_failure
from trainer.launcher.metrics import Metrics, serve_metrics
from trainer.launcher.output import emit, say
from trainer.launcher.program import PROGRAM
from trainer.launcher.settings import endpoint_text, parse_endpoint

HUNG = 120.0
"""Seconds in which a worker must leave an aborted group; then it is killed. It may compute for so
long before it notices."""
HUNG_STILL = 30.0
"""The same for a worker that stands still."""
WHERE = 2.0
"""Seconds in an aborted group after which a worker that stands still is asked where."""
EXIT = 1.0
"""Seconds in which processes that are about to exit do so."""
REPEATED = 60.0
"""Seconds between two events that say that this host is left out."""
WAITS = 5.0
"""Seconds without a group after which a host that is ready says so."""
GRACE = 20.0
"""Seconds in which workers must end when they are told to."""


class Agent:
    """The agent of this host."""

    def __init__(
        self, environ: Mapping[str, str], folder: Path, program: Sequence[str], policy: Policy
    ) -> None:
        """`program` are the arguments of Python for a worker, `folder` is the agent's own."""
        self._environ, self._folder, self._program = environ, folder, program
        self._host = environ["KIT_HOST"]
        self._checkpoints = Path(environ.get("KIT_CHECKPOINTS") or "/checkpoints")
        self._id = name_agent(self._host, time.time_ns())
        self._endpoint = parse_endpoint(environ["KIT_RENDEZVOUS"])
        self._workers = [Worker(local) for local in range(int(environ["KIT_NPROC"]))]
        self._patience = float(environ.get("KIT_RENDEZVOUS_TIMEOUT") or "300")
        self._coordinator: asyncio.StreamWriter | None = None
        self._order, self._heard = Order(), time.monotonic()
        self._newest = 0  # The newest generation that an order has named.
        self._signal = 0
        self._halt: Halt | None = None
        self._out: Halt | None = None  # Why this host is left out.
        self._say_idle: float | None = None  # When to say that it is ready and in no group.
        self._policy = policy
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.metrics: Metrics | None = None

    async def run(self) -> int:
        """Run until the training is over; return the exit code. Raises LaunchError."""
        path = str(self._folder / "workers")
        server = await asyncio.start_unix_server(self._serve_worker, path, limit=LONGEST)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, number)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._release)
        try:
            for each in self._workers:
                self._start(self._keep(each))
            self._start(self._connect())
            self._start(self._watch())
            return await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._end_workers()
            server.close()
            await served(self._serving)

    def _start(self, work: object) -> None:
        async def guarded() -> None:
            try:
                await work  # type: ignore[misc]
            except Exception as error:
                self._finish(error)

        self._tasks.add(asyncio.create_task(guarded()))

    def _finish(self, result: int | Exception) -> None:
        if self._over.done():
            return
        if isinstance(result, int):
            self._over.set_result(result)
        else:
            self._over.set_exception(result)

    # ---- Workers

    async def _keep(self, worker: Worker) -> None:
        """Start a worker, and start it anew whenever it ends by a fault."""
        while not self._over.done():
            began = time.monotonic()
            code = await self._run_worker(worker)
            failure = self._request_of(worker)
            worker.stopped, worker.aborted = False, None
            worker.patience, worker.still, worker.asked = Patience(), False, False
            worker.done = code == 0 and failure is None
            if not worker.done:
                left = max(worker.place.generation, worker.place.left)
                worker.place = Place(worker.local_rank, rank=worker.place.rank, left=left)
                worker.writer, worker.starts = None, worker.starts + 1
            self._report()
            if not self._ends and not worker.done:
                self._judge(failure or await self._describe(worker, code))
            if self._ends or worker.done:
                self._report()
                return
            now = time.monotonic()
            await asyncio.sleep(self._policy.pause(now, now - began))

    @property
    def _ends(self) -> bool:
        """Whether no worker shall be started any more."""
        return bool(self._signal or self._halt or self._out or self._order.kind == "end")

    def _request_of(self, worker: Worker) -> Halt | None:
        """Take the reason for which a worker wants to end for good."""
        file = self._halt_file(worker)
        content = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        if not content:
            return None
        found = json.loads(content)
        return Halt(found["kind"], found["message"], found.get("code", FAILURE))

    def _halt_file(self, worker: Worker) -> Path:
        return self._folder / f"halt-{worker.local_rank}"

    def _pulse_file(self, worker: Worker) -> Path:
        return self._folder / f"pulse-{worker.local_rank}"

    def _judge(self, failure: Halt) -> None:
        """Do with a failure what the job says."""
        action = self._policy.judge(failure.kind, time.monotonic())
        if action == "stop":
            self._halt = failure
        elif action == "leave_out":
            self._leave_out(failure)
        else:
            say(f"{failure.message}; it is started again", error=True)

    def _leave_out(self, failure: Halt) -> None:
        """End this host's part until a person releases it; what its workers hold is not trusted."""
        self._out = failure
        say(f"is left out until it is released: {failure.message}", error=True)
        self._tell_out()
        for worker in self._workers:
            if worker.process and worker.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)

    def _tell_out(self) -> None:
        if self._out:
            emit("left_out", kind=self._out.kind, message=self._out.message)

    def _release(self) -> None:
        """SIGUSR1: a person takes this host back."""
        if self._out is None or any(each.running for each in self._workers):
            return
        self._out = None
        self._policy.forgive()
        say("is released")
        emit("released")
        for each in self._workers:
            self._start(self._keep(each))

    async def _run_worker(self, worker: Worker) -> int:
        argv = [sys.executable, str(PROGRAM), "worker", *self._program]
        environ = {
            **self._environ,
            "KIT_WORKERS": str(self._folder / "workers"),
            "KIT_AGENT": self._id,
            "KIT_LEFT": str(worker.place.left),
            "KIT_HALT": str(self._halt_file(worker)),
            "KIT_PULSE": str(self._pulse_file(worker)),
            "LOCAL_RANK": str(worker.local_rank),
            "LOCAL_WORLD_SIZE": str(len(self._workers)),
            "TORCHELASTIC_RESTART_COUNT": str(worker.starts),
        }
        pulse.make(self._pulse_file(worker))
        process = await asyncio.create_subprocess_exec(
            *argv, env=environ, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        worker.process = process
        return await process.wait()

    async def _describe(self, worker: Worker, code: int) -> Halt:
        """Describe the end of a worker by its exit code and its exception."""
        rank = worker.place.rank
        known = f"rank {rank} (local rank {worker.local_rank})"
        who = f"local rank {worker.local_rank}" if rank is None else known
        words = self._folder / f"local-{worker.local_rank}"
        reason = await asyncio.to_thread(exception_in, words)
        error = worker_failure(f"{who} has failed", code, reason, rank=rank)
        return Halt(error.kind, str(error).splitlines()[0], error.code)

    async def _serve_worker(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read what a worker says."""
        note_task(self._serving)
        worker = None
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                place = read_place(line)
                worker = self._workers[place.local_rank]
                if place.start != worker.starts:
                    break
                changed = place.ready and not worker.place.ready
                worker.place, worker.writer = place, writer
                if place.left >= place.generation:
                    if worker.asked:
                        worker.patience.learn(time.monotonic())
                    worker.aborted, worker.still, worker.asked = None, False, False
                self._report()
                if changed:
                    self._forward(worker)
        if worker and worker.writer is writer:
            worker.writer = None
        writer.close()

    def _forward(self, worker: Worker) -> None:
        """Tell a worker the present order."""
        order = self._order
        if order.kind == "abort" and worker.place.left < order.generation:
            worker.aborted = worker.aborted or time.monotonic()
        if worker.writer and order.kind in {"join", "leave", "abort"}:
            worker.writer.write(encode(order))

    async def _end_workers(self) -> None:
        """Tell the workers to end, and kill those that do not."""
        alive = [each.process for each in self._workers if each.process]
        for each in self._workers:
            if each.writer:
                each.writer.write(encode(Order("end")))
        waits = [asyncio.create_task(process.wait()) for process in alive]
        if waits:
            await asyncio.wait(waits, timeout=EXIT)
        for each in self._workers:
            if each.process and each.process.returncode is None and not each.writer:
                each.process.terminate()  # It has not connected yet.
        if waits:
            await asyncio.wait(waits, timeout=GRACE)
        for process in alive:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    # ---- The coordinator

    async def _connect(self) -> None:
        """Hold a connection to the coordinator; report, and take its orders."""
        lost = 0.0
        while True:
            with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(LOST):
                    reader, writer = await asyncio.open_connection(*self._endpoint, limit=LONGEST)
                self._coordinator, self._heard = writer, time.monotonic()
                if lost:
                    say("the coordinator is back")
                lost = 0.0
                self._report()
                await self._listen(reader)
            if self._coordinator:
                self._coordinator.close()
            self._coordinator = None
            if not lost:
                lost = time.monotonic()
                say("the coordinator does not answer: hosts that train go on, others wait for it")
            idle = all(each.place.ready or not each.runs for each in self._workers)
            if idle and time.monotonic() - lost > self._patience:
                what = f"nothing answered at {endpoint_text(self._endpoint)}"
                raise LaunchError(f"{what} for {self._patience:.0f} s", FAILURE, "rendezvous")
            await asyncio.sleep(0.3)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take orders until the connection is lost."""
        while True:
            async with asyncio.timeout(LOST):
                line = await reader.readline()
            if not line:
                return
            order, self._heard = decode(Order, line), time.monotonic()
            if order == self._order:
                continue
            self._order, self._newest = order, max(self._newest, order.generation)
            if order.kind == "end":
                self._end(order.halt)
            for worker in self._workers:
                self._forward(worker)

    def _end(self, halt: Halt | None) -> None:
        """The whole training is over."""
        if halt is None:
            # Workers in the last group are a moment behind, others have nothing more to do.
            if not any(each.runs and each.inside for each in self._workers):
                self._finish(0)
            return
        where = "" if halt.host == self._host else f"{halt.host}: "
        self._finish(LaunchError(f"{where}{halt.message}", halt.code, halt.kind))

    def report(self) -> Report:
        """The state of this host."""
        places = [each.place for each in self._workers]
        started = all((each.runs and each.writer) or each.done for each in self._workers)
        return Report(
            agent=self._id,
            host=self._host,
            workers=len(places),
            store=places[0].store,
            generation=min(place.generation for place in places),
            members=places[0].members,
            left=max(place.left for place in places),
            heard=self._newest,
            reached=(
                min(each.reached for each in self._workers),
                max(each.reached for each in self._workers),
            ),
            still=any(each.still for each in self._workers),
            ready=started and all(place.ready for place in places),
            starting=not started and self._out is None,
            leaving=self._signal > 0,
            spare=bool(self._environ.get("KIT_SPARE")),
            saved=-1 if any(each.inside for each in self._workers) else self._saved(),
            done=all(each.done for each in self._workers),
            halt=self._halt,
            out=self._out,
        )

    def _saved(self) -> int:
        try:
            return newest_step(self._checkpoints)
        except OSError:  # The workers say so.
            return -1

    def _report(self) -> None:
        if self._coordinator:
            self._coordinator.write(encode(self.report()))

    # ---- Time

    async def _watch(self) -> None:
        """Repeat the report, and look at what time changes."""
        finished, told = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if time.monotonic() - told > REPEATED:
                told = time.monotonic()
                self._tell_out()
            for worker in self._workers:
                self._look_at(worker)
            self._report()
            self._tell_idle()
            if self._signal:
                self._try_to_end()
            done = all(each.done for each in self._workers)
            finished = finished or (time.monotonic() if done or self._halt else 0.0)
            if finished and (time.monotonic() - finished > LOST or self._coordinator is None):
                # Nobody confirms it: the coordinator has ended, or is gone.
                self._end(self._halt)
            if self._order.kind == "end" and not self._order.halt:
                self._end(None)

    def _tell_idle(self) -> None:
        """Say once that this host stands by: as a spare, or because too few hosts are there."""
        now = time.monotonic()
        if not self.report().ready:
            self._say_idle = None
        elif self._say_idle is None:
            self._say_idle = now + WAITS
        elif now > self._say_idle:
            self._say_idle = float("inf")
            say("is ready, and waits for a place in the group")

    def _look_at(self, worker: Worker) -> None:
        """See whether a process was stopped, or does not leave its group."""
        if worker.process is None or worker.process.returncode is not None:
            return
        stopped = stands_still(worker.process.pid)
        if stopped != worker.stopped:
            worker.stopped = stopped
            does = "was stopped by a signal" if worker.stopped else "goes on"
            say(f"local rank {worker.local_rank} {does}")
        if worker.stopped:  # It will leave its group as soon as it goes on.
            place = worker.place
            worker.place = replace(place, left=max(place.generation, place.left))
        now = time.monotonic()
        worker.patience.note(pulse.read(self._pulse_file(worker)), now)
        worker.still = worker.inside and worker.patience.doubtful(now)
        if worker.still:
            worker.still = worker.patience.exhausted(pulse.look_at(worker.process.pid), now)
        if worker.aborted:
            self._urge(worker, worker.process, now - worker.aborted)

    def _urge(self, worker: Worker, process: Process, waited: float) -> None:
        """Ask a worker that does not leave an aborted group where it hangs; at last, kill it."""
        name = f"local rank {worker.local_rank}"
        if worker.still and waited > WHERE and not worker.asked:
            worker.asked = True
            say(f"{name} hangs; what its threads do, the last call first:")
            process.send_signal(signal.SIGUSR2)
            emit("hung", local_rank=worker.local_rank, seconds=round(waited, 1))
        patience = HUNG_STILL if worker.still else HUNG
        if waited > patience:
            say(f"kills {name}: it has not left its group for {patience:.0f} s")
            process.kill()

    def _leave(self, number: int) -> None:
        """A signal asks this host to end."""
        self._signal = self._signal or number
        if self.metrics:
            self.metrics.ask_to_end()
        self._report()

    def _try_to_end(self) -> None:
        """End once no worker is in a group; without a coordinator nobody lets them leave."""
        inside = [each for each in self._workers if each.inside]
        if not any(each.runs for each in inside):
            self._finish(128 + self._signal)
        elif time.monotonic() - self._heard > LOST:
            for worker in inside:
                if worker.writer:
                    worker.writer.write(encode(Order("abort", worker.place.generation)))


def stands_still(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; one that is gone was not."""
    with suppress(OSError):
        stat = Path("/proc", str(pid), "stat").read_text()
        return stat.rpartition(") ")[2][0] in "Tt"
    return False


async def run(environ: Mapping[str, str], folder: Path, program: Sequence[str]) -> int:
    """Run the agent; return its exit code. Raises LaunchError."""
    agent = Agent(environ, folder, program, Policy(read_faults(Path(environ["KIT_JOB"]))))
    if at := environ.get("KIT_METRICS_AT"):
        agent.metrics = serve_metrics(parse_endpoint(at), folder)
    code = await agent.run()
    if code > 128:
        say(f"ended on {signal.Signals(code - 128).name}")
        if agent.metrics:
            await asyncio.to_thread(agent.metrics.wait_for_reader)
    return code


def read_faults(job: Path) -> Faults:
    """Read the job's policy; a mistake in it is told by the workers, who read the whole job."""
    with suppress(OSError, ValueError, TypeError):
        return Faults(**json.loads(job.read_text()).get("faults", {}))
    return Faults()


def main() -> int:
    """Run the agent with the variables of launch.py, and the program of the arguments."""
    with tempfile.TemporaryDirectory(prefix="kit-agent-", ignore_cleanup_errors=True) as folder:
        more = {"KIT_LAST_WORDS": folder}
        if os.environ.get("KIT_METRICS_AT"):
            more["KIT_METRICS"] = folder
        return asyncio.run(run({**os.environ, **more}, Path(folder), sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(guarded(main))
