"""The agent of a host: starts the workers of the built-in training, watches them, and reports.

    python -m trainer.elastic.agent -m trainer.train    as launch.py becomes it, with its variables

It forwards the coordinator's orders to the workers. While it cannot reach the coordinator, the
workers continue. The agent restarts a worker that ends; it starts up while the others train.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.contract.job import Faults
from trainer.elastic import pulse
from trainer.elastic.policy import Policy
from trainer.elastic.pulse import Patience
from trainer.elastic.saved import newest_result, saved_step
from trainer.elastic.workers import Place, Worker, read_place
from trainer.group.messages import LOST, Halt, Order, Report, Result, encode
from trainer.launcher.errors import LaunchError, guarded
from trainer.launcher.failures import exception_in, worker_failure
from trainer.launcher.host_agent import HostAgent, run_host
from trainer.launcher.output import emit, say
from trainer.launcher.program import PROGRAM

EXIT = 1.0
"""Seconds to wait for processes that exit by themselves."""
REPEATED = 60.0
"""Seconds between two `left_out` events of this host."""
WAITS = 5.0
"""Seconds after which a ready host without a group logs this."""
GRACE = 20.0
"""Seconds in which workers must end after the order to end."""


class Agent(HostAgent):
    """The agent of this host."""

    def __init__(
        self, environ: Mapping[str, str], folder: Path, program: Sequence[str], policy: Policy
    ) -> None:
        """`program` has Python's arguments for a worker; `folder` is for this agent alone."""
        super().__init__(environ, folder)
        self._program, self._policy = program, policy
        self._checkpoints = Path(environ.get("KIT_CHECKPOINTS") or "/checkpoints")
        self._workers = [Worker(local, folder) for local in range(int(environ["KIT_NPROC"]))]
        self._halt: Halt | None = None
        self._result: Result | None = None  # At the end.
        self._out: Halt | None = None  # Why this host is left out.
        self._say_idle: float | None = None  # When to say that it is ready and in no group.
        self._finished = 0.0  # The time at which its workers had trained to the end, or halted.
        self._told_out = time.monotonic()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._release)

    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._keep(each) for each in self._workers]

    # ---- Workers

    async def _keep(self, worker: Worker) -> None:
        """Start a worker, and restart it when it fails."""
        while not self._over.done():
            began = time.monotonic()
            code = await self._run_worker(worker)
            failure = worker.take_request()
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
        """Whether the agent must no longer start workers."""
        return bool(self._signal or self._halt or self._out or self._order.kind == "end")

    def _judge(self, failure: Halt) -> None:
        """Apply the job's policy to a failure."""
        action = self._policy.judge(failure.kind, time.monotonic())
        if action == "stop":
            self._halt = failure
        elif action == "leave_out":
            self._leave_out(failure)
        else:
            say(f"{failure.message}; it is restarted", error=True)

    def _leave_out(self, failure: Halt) -> None:
        """Leave this host out until a person releases it; its workers' state is not trusted."""
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
        """Handle SIGUSR1: a person releases this host."""
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
            "KIT_HALT": str(worker.halt_file),
            "KIT_PULSE": str(worker.pulse_file),
            "LOCAL_RANK": str(worker.local_rank),
            "LOCAL_WORLD_SIZE": str(len(self._workers)),
            "TORCHELASTIC_RESTART_COUNT": str(worker.starts),
        }
        pulse.make(worker.pulse_file)
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
        reason = await asyncio.to_thread(exception_in, words, code)
        error = worker_failure(f"{who} has failed", code, reason, rank=rank)
        return Halt(error.kind, str(error).splitlines()[0], error.code)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a worker's reports."""
        worker = None
        try:
            while line := await reader.readline():
                place = read_place(line)
                worker = self._workers[place.local_rank]
                if place.start != worker.starts:
                    break
                self._place(worker, place, writer)
        finally:
            if worker and worker.writer is writer:
                worker.writer = None

    def _place(self, worker: Worker, place: Place, writer: asyncio.StreamWriter) -> None:
        """Store the place that a worker reports."""
        changed = place.ready and not worker.place.ready
        worker.place, worker.writer = place, writer
        if place.left >= place.generation:
            if worker.asked:
                worker.patience.learn(time.monotonic())
            worker.aborted, worker.still, worker.asked = None, False, False
        self._report()
        if changed:
            self._forward(worker)

    def _forward(self, worker: Worker) -> None:
        """Send a worker the present order."""
        order = self._order
        if order.kind == "abort" and worker.place.left < order.generation:
            worker.aborted = worker.aborted or time.monotonic()
        if worker.writer and order.kind in {"join", "leave", "abort"}:
            worker.writer.write(encode(order))

    async def _end_workers(self) -> None:
        """Order the workers to end, and kill those that do not."""
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
        await self._copied(each.local_rank for each in self._workers if each.process)
        for each in self._workers:  # What still copies their output may remove it later.
            (self._folder / f"worker-{each.local_rank}.json").unlink(missing_ok=True)

    # ---- The coordinator

    def is_complete(self) -> bool:
        """Whether this host's workers, and thus those of all hosts, have trained to the end."""
        return all(each.done for each in self._workers)

    def _ranks(self) -> Sequence[int]:
        return [each.process.pid for each in self._workers if each.process and each.runs]

    def _is_idle(self) -> bool:
        return all(each.place.ready or not each.runs for each in self._workers)

    def _obey(self, order: Order) -> None:
        if order.kind == "end":
            self._end(order.halt)
        for worker in self._workers:
            self._forward(worker)

    def _end(self, halt: Halt | None) -> None:
        """End this agent: the whole training is over."""
        if halt is None:
            # Wait for workers that are still in the last group; others have nothing more to do.
            if not any(each.runs and each.inside for each in self._workers):
                self._finish(0)
            return
        where = "" if halt.host == self._host else f"{halt.host}: "
        self._finish(LaunchError(f"{where}{halt.message}", halt.code, halt.kind))

    def report(self) -> Report:
        """The state of this host."""
        places = [each.place for each in self._workers]
        done = all(each.done for each in self._workers)
        if (done or self._halt) and self._result is None:
            self._result = newest_result(self._checkpoints)
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
            spare=self._spare,
            saved=-1
            if any(each.inside for each in self._workers)
            else saved_step(self._checkpoints),
            done=self.is_complete(),
            result=self._result,
            halt=self._halt,
            out=self._out,
        )

    # ---- Time

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._told_out > REPEATED:
            self._told_out = now
            self._tell_out()
        for worker in self._workers:
            worker.look()
        self._tell_idle()
        if self._signal:
            self._try_to_end()
        ended = self.is_complete() or self._halt
        self._finished = self._finished or (now if ended else 0.0)
        if self._finished and (now - self._finished > LOST or self._connection is None):
            # No coordinator confirms it: it has ended, or its host is lost.
            self._end(self._halt)
        if self._order.kind == "end" and not self._order.halt:
            self._end(None)

    def _tell_idle(self) -> None:
        """Log once that this host stands by: as a spare, or because too few hosts are present."""
        now = time.monotonic()
        if not self.report().ready:
            self._say_idle = None
        elif self._say_idle is None:
            self._say_idle = now + WAITS
        elif now > self._say_idle:
            self._say_idle = float("inf")
            say("is ready, and waits to join a group")

    def _try_to_end(self) -> None:
        """End once no worker is in a group; without a coordinator, order workers to abort it."""
        inside = [each for each in self._workers if each.inside]
        if not any(each.runs for each in inside):
            self._finish(self._exit_code)
        elif not self.limit and time.monotonic() - self._heard > LOST:
            for worker in inside:
                if worker.writer:
                    worker.writer.write(encode(Order("abort", worker.place.generation)))


def read_faults(job: Path) -> Faults:
    """Read the job's policy; the workers, which read the whole job, report a mistake in it."""
    with suppress(OSError, ValueError, TypeError):
        return Faults(**json.loads(job.read_text()).get("faults", {}))
    return Faults()


def main() -> int:
    """Run the agent with the variables of launch.py, and the program of the arguments."""
    with tempfile.TemporaryDirectory(prefix="kit-agent-", ignore_cleanup_errors=True) as folder:
        more = {"KIT_LAST_WORDS": folder}
        if os.environ.get("KIT_METRICS_AT"):
            more["KIT_METRICS"] = folder
        os.environ |= more
        return asyncio.run(run(Path(folder), sys.argv[1:]))


async def run(folder: Path, program: Sequence[str]) -> int:
    """Run the agent; return its exit code. Raises LaunchError."""
    policy = Policy(read_faults(Path(os.environ["KIT_JOB"])))
    return await run_host(Agent(os.environ, folder, program, policy), folder, "ended")


if __name__ == "__main__":
    sys.exit(guarded(main))
