"""The engine for this machine: no Docker, a torchrun agent for each host, a process a server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from kit.engine import (
    Deployment,
    JobStatus,
    LogLine,
    Say,
    Step,
    deployment,
    left_alone,
    size,
)
from kit.engine.devices import local_gpus, serving_devices, visible_devices
from kit.engine.local_status import Tail, has_ended, job_status
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
from kit.plan.storage import CHECKPOINTS
from kit.plan.work import JobPlan, ServerPlan, Work, document_of
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
                say(left_alone(job))
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
        return Places(
            launcher=self._launcher.resolve(),
            job_file=(self._tree / document_of(name)).resolve(),
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
        folders = (JobFolder(self._cluster, job) for job in jobs_of(self._cluster))
        return tuple(status for folder in folders if (status := job_status(folder)) is not None)

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
            Tail(job, process.host, Path(process.log))
            for job in jobs
            for process in self._known(job).processes
            if process.part != HELPER
        ]
        while True:
            # Asked before the logs are read: what an ended job has printed is all there.
            ended = all(has_ended(JobFolder(self._cluster, job)) for job in jobs)
            lines = [line for tail in tails for line in tail.read(last=ended or not follow)]
            yield from lines
            if ended or not follow:
                return
            if not lines:
                time.sleep(POLL)

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
        status = job_status(folder)
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


def _version(work: Work) -> str:
    """Return what tells versions of a job or a server apart, whatever else is in the inventory."""
    gpus = [(placement.host.name, placement.devices) for placement in work.placements]
    return f"{work.job_hash} {gpus}"


def _size(work: Work) -> str:
    """Say how large what was started is; a server answers on this machine."""
    if isinstance(work, JobPlan):
        return size(work)
    return f"{count(work.replicas, 'replica')}: http://127.0.0.1:{work.server.port}"
