"""The engine for this machine: no Docker, a torchrun agent for each host, a process a server."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from kit.engine import (
    ENDED,
    Deployment,
    HostStatus,
    JobStatus,
    LogLine,
    Progress,
    Say,
    State,
    Step,
    deployment,
    size,
)
from kit.engine.devices import local_gpus, serving_devices, visible_devices
from kit.engine.printed import Printed, split
from kit.engine.processes import Places, on_this_machine, processes, server_process
from kit.engine.state import (
    HELPER,
    JobFolder,
    Run,
    add_to_history,
    jobs_of,
    read_history,
    state_home,
)
from kit.engine.supervise import marked
from kit.errors import InputError, KitError
from kit.model import SERVER_PREFIX
from kit.plan.storage import CHECKPOINTS
from kit.plan.types import JobPlan, ServerPlan, Work
from kit.secrets import read_secrets
from kit.values import count

POLL = 0.1
"""Seconds between two looks at logs and states."""
SERVER_GRACE = 20
"""Seconds in which a server answers the requests that wait, as in the rendered files."""
START = 30.0
"""Seconds within which a supervisor must have begun: it only starts Python."""


class LocalEngine:
    """Carries jobs out on this machine, over loopback, from the rendered tree."""

    tied_to_terminal: ClassVar[bool] = True

    def __init__(self, cluster: str, tree: Path, launcher: Path) -> None:
        self._cluster = cluster
        self._tree = tree
        self._launcher = launcher

    def preview(self, jobs: Sequence[Work], *, fresh: bool) -> tuple[Step, ...]:
        """Return what would be started; see `Engine.preview`."""
        begun, steps = set(jobs_of(self._cluster)), []
        for job in jobs:
            if self._goes_on(job):
                continue
            anew = fresh and isinstance(job, JobPlan)
            what = f"start {job.name} as {size(job)}" + (
                ", its checkpoints deleted" if anew else ""
            )
            cause = (
                "it has ended, or changed" if job.name in begun else "it was not deployed before"
            )
            steps.append(Step("here", what, cause))
        return tuple(steps)

    def deploy(self, jobs: Sequence[Work], *, fresh: bool, say: Say) -> None:
        """Start a supervisor for each job and server; see `Engine.deploy`."""
        if importlib.util.find_spec("torch") is None:
            raise KitError(
                "PyTorch is not installed beside kit, so nothing can be trained on this machine",
                "in kit's sources run `make setup`, or `pip install '.[trainer,digits]'`",
            )
        starting = [job for job in jobs if not self._goes_on(job)]
        for job in jobs:
            if job not in starting:
                rests = "rests, as no GPU is given to it"
                say(
                    f"{job.name}: {'runs already, from the same file' if job.placements else rests}"
                )
        runs = self._runs(starting)
        for job in jobs:
            gives_way = job in starting or not job.placements
            if gives_way and JobFolder(self._cluster, job.name).supervised():
                self.stop(job.name)
        if fresh:
            for run in runs:
                self._forget(run)
        for job, run in zip(starting, runs, strict=True):
            self._start(run, read_secrets(job))
            add_to_history(self._cluster, deployment(job, run.started))
            say(f"{job.name}: started as {_size(job)}")

    def _goes_on(self, work: Work) -> bool:
        """Whether nothing is to be started: a server rests, or runs as it should.

        Raises:
            KitError: A job that runs is not touched here.
        """
        if isinstance(work, JobPlan):
            self._refuse_running(work.name)
            return False
        if not work.placements:
            return True
        folder = JobFolder(self._cluster, work.name)
        run = folder.read_run()
        return run is not None and folder.supervised() and run.version == _version(work)

    def _refuse_running(self, job: str) -> None:
        folder = JobFolder(self._cluster, job)
        if folder.supervised():
            raise KitError(
                f"job {job} is running already",
                f"see it with `kit status`, end it with `kit stop {job}`",
            )
        run = folder.read_run()
        if run is not None and (left := marked(run.id)):
            pids = " ".join(str(process.pid) for process in left)
            raise KitError(
                f"job {job} has processes left of a supervisor that is gone: {pids}",
                f"end them with `kit stop {job}`",
            )

    def _runs(self, work: Sequence[Work]) -> list[Run]:
        """Return what is to be started; servers get GPUs that no job is given."""
        present, taken, runs = local_gpus(), set[str](), []
        for each in work:
            if isinstance(each, JobPlan):
                devices = visible_devices(each, present)
                taken |= {gpu for visible in devices.values() for gpu in visible.split(",")}
                runs.append(self._run(each, devices))
            else:
                devices_of_server = serving_devices(each, present, taken)
                taken |= set(devices_of_server.split(","))
                runs.append(self._server_run(each, devices_of_server))
        return runs

    def _places(self, name: str) -> Places:
        file = self._tree / "jobs" / f"{name}.json"
        if name.startswith(SERVER_PREFIX):
            file = self._tree / "serve" / f"{name.removeprefix(SERVER_PREFIX)}.json"
        return Places(
            launcher=self._launcher.resolve(),
            job_file=file.resolve(),
            folder=JobFolder(self._cluster, name).path,
            data=state_home() / "data",
        )

    def _run(self, job: JobPlan, devices: dict[str, str]) -> Run:
        places = self._places(job.name)
        hosts = [placement.host.name for placement in job.placements]
        return Run(
            id=uuid.uuid4().hex,
            job=job.name,
            version=_version(job),
            started=time.time(),
            nodes_min=job.nodes[0],
            stop_grace=job.job.stop_grace,
            checkpoints=tuple(
                str(on_this_machine(CHECKPOINTS, job, host, places)) for host in hosts
            ),
            processes=processes(job, places, devices, os.cpu_count() or 1),
        )

    def _server_run(self, server: ServerPlan, devices: str) -> Run:
        places, job = self._places(server.name), self._places(server.server.job)
        return Run(
            id=uuid.uuid4().hex,
            job=server.name,
            version=_version(server),
            started=time.time(),
            nodes_min=1,
            stop_grace=SERVER_GRACE,
            checkpoints=(),
            processes=(server_process(server, places, job, devices),),
        )

    def _forget(self, run: Run) -> None:
        """Delete the checkpoints of earlier runs, where they lie in kit's own folder."""
        own = JobFolder(self._cluster, run.job).path
        for path in map(Path, run.checkpoints):
            if not path.is_relative_to(own):
                raise KitError(
                    f"job {run.job} keeps its checkpoints in {path}, a folder of yours",
                    "move them away by hand to begin anew",
                )
        for folder in run.checkpoints:
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, run: Run, secrets: dict[str, str]) -> None:
        folder = JobFolder(self._cluster, run.job)
        folder.create()
        for path in (state_home() / "data", *map(Path, run.checkpoints)):
            path.mkdir(parents=True, exist_ok=True)
        folder.write_run(run)
        log = folder.path / "supervisor.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "kit.engine.supervise", self._cluster, run.job],
                env={**os.environ, **secrets},  # Not in run.json: that is a file.
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START
        while folder.read_state().get("run") != run.id:
            if child.poll() is not None or time.monotonic() > deadline:
                raise KitError(f"job {run.job} did not start", f"its supervisor's output: {log}")
            time.sleep(POLL)

    def break_lock(self) -> None:
        """The kernel lets go of a lock at its holder's death: nothing to do."""

    def status(self) -> tuple[JobStatus, ...]:
        """Return what the folders below the state directory tell; see `Engine.status`."""
        found = (self._job_status(job) for job in jobs_of(self._cluster))
        return tuple(status for status in found if status is not None)

    def _job_status(self, job: str) -> JobStatus | None:
        folder = JobFolder(self._cluster, job)
        run = folder.read_run()
        if run is None:
            return None
        # The lock is asked first: a supervisor writes its last state before it lets go.
        supervised = folder.supervised()
        written = folder.read_state()
        state, message = State(written.get("state", State.WAITING)), written.get("message", "")
        if written.get("run") != run.id:
            state, message = State.WAITING, ""
        if not supervised and state not in ENDED:
            state, message = State.FAILED, f"its supervisor is gone; `kit stop {job}` cleans up"
        printed = _printed(run)
        serves = job.startswith(SERVER_PREFIX)
        return JobStatus(
            job=job,
            state=state,
            message=message,
            started=run.started,
            ended=written.get("ended"),
            hosts=_hosts(run, written.get("exits", []), state, printed),
            progress=_progress(run),
            checkpoint=printed.checkpoint if serves else _newest_checkpoint(run),
            urls=(f"http://127.0.0.1:{_port(run)}",) if serves else (),
        )

    def known(self) -> dict[str, tuple[str, ...]]:
        """Return what was started on this machine; see `Engine.known`."""
        runs = (JobFolder(self._cluster, job).read_run() for job in jobs_of(self._cluster))
        return {
            run.job: tuple(each.host for each in run.processes if each.part != HELPER)
            for run in runs
            if run is not None
        }

    def logs(
        self, jobs: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the hosts' log files; see `Engine.logs`."""
        if since is not None:
            raise InputError("on this machine lines carry no time", "leave out --since")
        tails = [
            _Tail(job, process.host, Path(process.log))
            for job in jobs
            for process in self._known(job).processes
            if process.part != HELPER
        ]
        while True:
            # Asked before the logs are read: what an ended job has printed is all there.
            ended = all(self._ended(job) for job in jobs)
            lines = [line for tail in tails for line in tail.read(last=ended or not follow)]
            yield from lines
            if ended or not follow:
                return
            if not lines:
                time.sleep(POLL)

    def _ended(self, job: str) -> bool:
        status = self._job_status(job)
        return status is None or status.state in ENDED

    def stop(self, job: str) -> JobStatus:
        """Ask the supervisor to end the job, and wait; see `Engine.stop`."""
        run = self._known(job)
        folder = JobFolder(self._cluster, job)
        left = marked(run.id)
        if folder.supervised():
            os.kill(folder.read_state()["pid"], signal.SIGTERM)
            while folder.supervised():
                time.sleep(POLL)
        elif left:
            for process in left:
                process.kill()
        else:
            raise KitError(f"job {job} is not running", "see what is with `kit status`")
        status = self._job_status(job)
        assert status is not None
        return status

    def history(self) -> tuple[Deployment, ...]:
        """Return what was written down at each start; see `Engine.history`."""
        return tuple(reversed(read_history(self._cluster)))

    def _known(self, job: str) -> Run:
        run = JobFolder(self._cluster, job).read_run()
        if run is None:
            known = ", ".join(jobs_of(self._cluster)) or "none"
            raise KitError(
                f"no job {job} was ever deployed on this machine for cluster {self._cluster}",
                f"known are: {known}",
            )
        return run


class _Tail:
    """Reads what was appended to a log since the last look, in whole lines."""

    def __init__(self, job: str, host: str, path: Path) -> None:
        self._job = job
        self._host = host
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, last: bool) -> list[LogLine]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        texts = [split(line.decode(errors="replace").rstrip("\r")) for line in lines]
        return [LogLine(self._job, self._host, text, rank) for rank, text in texts]


def _version(work: Work) -> str:
    """Return what tells versions of a job or a server apart, whatever else is in the inventory."""
    gpus = [(placement.host.name, placement.devices) for placement in work.placements]
    return f"{work.job_hash} {gpus}"


def _size(work: Work) -> str:
    """Say how large what was started is; a server answers on this machine."""
    if isinstance(work, JobPlan):
        return size(work)
    return f"{count(work.replicas, 'replica')}: http://127.0.0.1:{work.server.port}"


def _port(run: Run) -> int:
    """Return the port of a server, from what it reads."""
    file = dict(run.processes[0].variables)["KIT_SERVER"]
    try:
        return int(json.loads(Path(file).read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError):
        return 0


def _printed(run: Run) -> Printed:
    """Return what the hosts' processes have told of GPUs and, where they serve, of checkpoints."""
    printed = Printed()
    for process in run.processes:
        if process.part == HELPER:
            continue
        tail = _Tail(run.job, process.host, Path(process.log))
        for line in tail.read(last=True):
            printed.read(line)
    return printed


def _hosts(
    run: Run, exits: list[int | None], state: State, printed: Printed
) -> tuple[HostStatus, ...]:
    hosts = []
    for process, code in zip(run.processes, exits, strict=False):
        if process.part == HELPER:
            continue
        if code is None:
            doing = state if state not in ENDED else State.STOPPED
        else:
            doing = State.COMPLETED if code == 0 else State.FAILED
        if state is State.STOPPED:
            doing = State.STOPPED
        visible = dict(process.variables)["CUDA_VISIBLE_DEVICES"]
        hosts.append(
            HostStatus(
                process.host,
                process.workers,
                doing,
                code,
                devices=tuple(visible.split(",")) if visible else (),
                ranks=printed.ranks.get(process.host, ()),
                seen=printed.seen.get(process.host, ()),
            )
        )
    return tuple(hosts)


def _progress(run: Run) -> Progress | None:
    """Return the newest metrics that any host has of this run."""
    newest = max(
        (metrics for folder in run.checkpoints if (metrics := _last_metrics(Path(folder)))),
        key=lambda metrics: metrics["time"],
        default=None,
    )
    if newest is None or newest["time"] < run.started:
        return None
    known: dict[str, Any] = {field.name: newest.get(field.name) for field in fields(Progress)}
    return Progress(**known)


def _last_metrics(folder: Path) -> dict[str, Any] | None:
    """Return the last whole line of rank 0's metrics that tells how far it is."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            metrics = json.loads(line)
        except ValueError:
            continue
        if {"time", "epoch", "epochs", "step", "steps"} <= metrics.keys():
            return dict(metrics)
    return None


def _newest_checkpoint(run: Run) -> str | None:
    complete = [
        marker.parent
        for folder in run.checkpoints
        for marker in Path(folder).glob("step-*/COMPLETE")
    ]
    newest = max(complete, key=lambda path: path.name, default=None)
    return None if newest is None else str(newest)
