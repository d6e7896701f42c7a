"""The supervisor of a job or a server on this machine: it starts, watches and ends its processes.

`kit deploy` runs it in its own session: `python -m kit.targets.local.supervise CLUSTER JOB`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import psutil

from kit.runtime.status import State
from kit.targets.local.folder import JobFolder, Run
from kit.targets.local.lower import Process
from kit.workload.notify import NOTIFY
from kit.workload.types import Role
from trainer.contract.exits import NOT_OVER

POLL = 0.05
"""Seconds between two checks of the processes."""
NOTIFYING = 10.0
"""Seconds for the last notifications, as long as Docker waits before it kills a container."""
MARK = "KIT_RUN"
"""The variable that all processes of a run have: torchrun's workers have their own sessions, so
neither a process group nor a parent identifies them."""


class Supervisor:
    """Supervises one run: a failed agent ends the job, unless enough hosts are left."""

    def __init__(self, folder: JobFolder, run: Run) -> None:
        self._folder = folder
        self._run = run
        self._children: list[tuple[Process, subprocess.Popen[bytes]]] = []
        self._stopping = False
        self._message = ""

    def work(self) -> State:
        """Run the job to its end and return its final state."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            for process in self._run.processes:
                self._children.append((process, self._start(process)))
            self._write(State.RUNNING)
            outcome = self._watch()
        except OSError as error:
            self._message = f"{error.filename}: {error.strerror}"
            outcome = State.FAILED
        self._end_all()
        self._write(outcome, ended=time.time())
        return outcome

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start(self, process: Process) -> subprocess.Popen[bytes]:
        log = Path(process.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            return subprocess.Popen(
                process.argv,
                env={**os.environ, **dict(process.variables), MARK: self._run.id},
                cwd=process.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self) -> State:
        known: list[int | None] = []
        while True:
            codes = [child.poll() for _, child in self._children]
            if codes != known:
                known = codes
                self._write(State.RUNNING)
            if self._stopping:
                self._write(State.STOPPING)
                return State.STOPPED
            outcome = self._outcome()
            if outcome is not None:
                return outcome
            time.sleep(POLL)

    def _outcome(self) -> State | None:
        agents = [(p, c.returncode) for p, c in self._children if p.part != Role.RENDEZVOUS]
        failed = [(process, code) for process, code in agents if code]
        living = [process for process, code in agents if code is None]
        done = [process for process, code in agents if code == 0]
        if failed and len(living) + len(done) < self._run.nodes_min:
            process, code = failed[0]
            self._message = f"{process.host} {_meaning(code)}; its output: {process.log}"
            return State.FAILED
        broken = next(
            (
                child
                for process, child in self._children
                if process.part == Role.RENDEZVOUS and child.poll() not in {None, 0, NOT_OVER}
            ),
            None,
        )
        if broken is not None and living:
            log = self._run.processes[0].log
            what = f"the coordinator {_meaning(broken.returncode)}"
            self._message = f"{what}{_reason(log)}; its output: {log}"
            return State.FAILED
        if living:
            return None
        if failed:
            self._message = f"done without {', '.join(process.host for process, _ in failed)}"
        return State.COMPLETED

    def _end_all(self) -> None:
        """End the agents first, so that they can save a last checkpoint, then the rest."""
        agents = [child for process, child in self._children if process.part != Role.RENDEZVOUS]
        for child in agents:
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + self._run.stop_grace
        while time.monotonic() < deadline and any(child.poll() is None for child in agents):
            time.sleep(POLL)
        self._end_notifying()
        for process in run_processes(self._run.id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for _, child in self._children:
            child.wait()

    def _end_notifying(self) -> None:
        """End the coordinator of a job that notifies people: it may still send the end."""
        for process, child in self._children:
            if process.part == Role.RENDEZVOUS and NOTIFY in dict(process.variables):
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(NOTIFYING)

    def _write(self, state: State, ended: float | None = None) -> None:
        self._folder.write_state(
            {
                "run": self._run.id,
                "pid": os.getpid(),
                "state": state,
                "message": self._message,
                "ended": ended,
                "exits": [child.poll() for _, child in self._children],
            }
        )


def _meaning(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"failed with exit status {code}"


def _reason(log: str) -> str:
    """Return the last error in a log of the launcher, to be appended to a message."""
    with contextlib.suppress(OSError):
        for line in reversed(Path(log).read_text(errors="replace").splitlines()):
            _, separator, reason = line.partition(" error: ")
            if separator and line.startswith("launch "):
                return f": {reason}"
    return ""


def run_processes(run: str) -> list[psutil.Process]:
    """Return the living processes of a run."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run:
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in processes if process.pid != os.getpid()]


def main() -> int:
    """Supervise the run in the job's folder."""
    folder = JobFolder(*sys.argv[1:3])
    lock = folder.take_lock()
    run = folder.read_run()
    if lock is None or run is None:
        return 1
    return 0 if Supervisor(folder, run).work() is State.COMPLETED else 1


if __name__ == "__main__":
    sys.exit(main())
