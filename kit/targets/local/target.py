"""The target of this machine, without Docker: agents for jobs, a process per server."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from kit.errors import InputError, KitError
from kit.runtime.access import Access, no_container
from kit.runtime.history import Deployment
from kit.runtime.loop import execute_steps
from kit.runtime.record_files import FoundRecords, from_folder
from kit.runtime.rendered import rendered
from kit.runtime.source import current_source
from kit.runtime.status import JobStatus, LogLine
from kit.runtime.steps import Step, unchanged_message
from kit.runtime.target import Agree, Known
from kit.secrets import read_secrets
from kit.targets.local.decide import Machine, Start, StartData, decide, started_as, steps_of_data
from kit.targets.local.execute import POLL, Executor, end
from kit.targets.local.folder import (
    SERVICES,
    JobFolder,
    Run,
    data_folder,
    jobs_of,
    read_history,
)
from kit.targets.local.logs import Tail
from kit.targets.local.observe import WatchedFolder, has_ended, observe_machine, observe_workloads
from kit.targets.local.supervise import run_processes
from kit.values import Say
from kit.workload.types import Role, Workload

AGENT = "trainer.elastic.agent"


class LocalTarget:
    """Runs workloads on this machine, over loopback, from the rendered tree."""

    tied_to_terminal: ClassVar[bool] = True
    on_hosts: ClassVar[bool] = False

    def __init__(
        self, cluster: str, tree: Path, launcher: Path, workloads: Sequence[Workload] = ()
    ) -> None:
        self._cluster = cluster
        self._tree = tree
        self._launcher = launcher
        self._jobs = {each.name: each for each in workloads}
        self._watched: dict[str, WatchedFolder] = {}

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Return the steps; see `Target.preview`."""
        observed = observe_workloads(self._cluster, [each.name for each in workloads])
        machine = observe_machine(self._cluster, self._tree, self._launcher)
        steps = decide(workloads, self._jobs, observed, machine, fresh=fresh)
        services = self._data_steps(machine) if any(each.data for each in workloads) else ()
        return (*services, *steps)

    def _data_steps(self, machine: Machine) -> tuple[Step, ...]:
        data = rendered(self._tree).data
        if data is None:
            return ()
        return steps_of_data(data, observe_workloads(self._cluster, [SERVICES])[SERVICES], machine)

    def start_data(self, names: Sequence[str], say: Say) -> None:  # noqa: ARG002
        """Start the data services of this machine; see `Target.start_data`."""
        machine = observe_machine(self._cluster, self._tree, self._launcher)
        execute = Executor(self._cluster, {}).execute
        for _ in execute_steps(self._data_steps(machine), execute, say):
            pass

    def commands(self, script: str) -> Mapping[str, list[str]]:
        """Return the command for this machine, if it has a driver; see `Target.commands`."""
        return {"this machine": ["sh", "-c", script]} if shutil.which("nvidia-smi") else {}

    def data_folder(self) -> Path:
        """Return the folder of the data sets; see `Target.data_folder`."""
        return data_folder(self._cluster)

    def stop_data(self) -> bool:
        """End the data services of this machine; see `Target.stop_data`."""
        return end(JobFolder(self._cluster, SERVICES))

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say, agree: Agree) -> None:
        """Start a supervisor for each workload; see `Target.deploy`."""
        own = all(each.parts and each.document is None for each in workloads)
        if not own and importlib.util.find_spec("torch") is None:
            raise KitError(
                "PyTorch is not installed beside kit, so nothing can be trained on this machine",
                "in kit's sources run `make setup`, or `pip install '.[trainer,digits]'`",
            )
        secrets = {each.name: read_secrets(each) for each in workloads if each.parts}
        steps = self.preview(workloads, fresh=fresh)
        agree(self.history())
        starting = {step.workload.name for step in steps if isinstance(step, Start)}
        for each in workloads:
            if each.name not in starting:
                say(unchanged_message(each))
        execute = Executor(self._cluster, secrets, current_source(self._tree)).execute
        for batch in execute_steps(steps, execute, lambda _: None):
            for step in batch:
                if isinstance(step, Start):
                    say(f"{step.workload.name}: started as {started_as(step.workload)}")
                elif isinstance(step, StartData):
                    say("the data services: started, `kit stop --all` ends them")

    def break_lock(self) -> None:
        """Do nothing: the kernel releases the lock of a dead process."""

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status from the folders in the state directory; see `Target.status`."""
        statuses = []
        for name in jobs_of(self._cluster):
            folder = JobFolder(self._cluster, name)
            run = folder.read_run()
            if run is None:
                continue
            watched = self._watched.get(name)
            if watched is None or watched.run.id != run.id:
                watched = self._watched[name] = WatchedFolder(folder, run)
            statuses.append(watched.status())
        return tuple(statuses)

    def missing(self) -> tuple[str, ...]:
        """Return nothing: a deploy brings all that workloads need; see `Target.missing`."""
        return ()

    def known(self) -> Mapping[str, Known]:
        """Return the workloads that were started on this machine; see `Target.known`."""
        runs = (JobFolder(self._cluster, name).read_run() for name in jobs_of(self._cluster))
        return {run.job: Known(run.kind, tuple(_hosts(run))) for run in runs if run is not None}

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the hosts' log files; see `Target.logs`."""
        if since is not None:
            raise InputError("with engine local lines have no time", "leave out --since")
        tails = [
            Tail(name, process.host, Path(process.log))
            for name in names
            for process in self._known(name).processes
            if process.part != Role.RENDEZVOUS
        ]
        while True:
            # Check this before reading: the logs of an ended job are complete.
            ended = all(has_ended(JobFolder(self._cluster, name)) for name in names)
            lines = [line for tail in tails for line in tail.read(last=ended or not follow)]
            yield from lines
            if ended or not follow:
                return
            if not lines:
                time.sleep(POLL)

    def stop(self, name: str) -> JobStatus:
        """Ask the supervisor to end the workload, and wait; see `Target.stop`."""
        run = self._known(name)
        folder = JobFolder(self._cluster, name)
        if not end(folder):
            raise KitError(f"job {name} is not running", "see `kit status`")
        return WatchedFolder(folder, run).status()

    def release(self, job: str, host: str) -> None:
        """Signal the host's agent; see `Target.release`."""
        for process in run_processes(self._known(job).id):
            with suppress(psutil.NoSuchProcess):
                if process.environ().get("KIT_HOST") == host and AGENT in process.cmdline():
                    process.send_signal(signal.SIGUSR1)

    def access(self, name: str, host: str) -> Access:
        """Return the variables and the folder of a host's processes; see `Target.access`."""
        for process in self._known(name).processes:
            if process.host == host and process.workers:
                variables = dict(process.variables)
                return Access(
                    environment=variables, folder=variables.get("KIT_WORKSPACE", process.folder)
                )
        raise no_container(name, host)

    def records(self, job: str, kind: str, source: str) -> FoundRecords:  # noqa: ARG002
        """Return the records beside the checkpoints; see `Target.records`."""
        run = JobFolder(self._cluster, job).read_run()
        folders = {
            process.host: Path(dict(process.variables)["KIT_CHECKPOINTS"])
            for process in (run.processes if run else ())
            if process.part == Role.TRAIN
        }
        # Folders of hosts that took part in an earlier run have the same layout.
        own = JobFolder(self._cluster, job).path
        for folder in list(folders.values()):
            if folder.is_relative_to(own):
                folders |= {each.parent.name: each for each in own.glob(f"*/{folder.name}")}
        files = [file for host, folder in folders.items() for file in from_folder(host, folder)]
        return FoundRecords(tuple(files))

    def queue(self) -> None:
        """Return None; see `Target.queue`."""

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded deployments; see `Target.history`."""
        return tuple(reversed(read_history(self._cluster)))

    def _known(self, name: str) -> Run:
        run = JobFolder(self._cluster, name).read_run()
        if run is None:
            known = ", ".join(jobs_of(self._cluster)) or "none"
            raise KitError(
                f"no job {name} was ever deployed on this machine for cluster {self._cluster}",
                f"known: {known}",
            )
        return run


def _hosts(run: Run) -> Iterator[str]:
    for process in run.processes:
        if process.part != Role.RENDEZVOUS:
            yield process.host
