"""Queries of this machine: its GPUs, the folders of workloads, and their logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from kit.hosts.gpus import listed_gpus
from kit.runtime.endings import by_limit
from kit.runtime.events import Reader
from kit.runtime.reported import with_reports
from kit.runtime.status import ENDED, HostStatus, JobStatus, State
from kit.targets.local.addressing import HERE
from kit.targets.local.decide import Machine, WorkloadState
from kit.targets.local.folder import JobFolder, Run, state_home
from kit.targets.local.logs import Tail
from kit.targets.local.lower import Places
from kit.targets.local.supervise import run_processes
from kit.workload.types import Kind, Role


def observe_machine(cluster: str, tree: Path, launcher: Path) -> Machine:
    """Return this machine's GPUs, cores and folders."""
    places = Places(
        python=sys.executable,
        launcher=PurePosixPath(launcher.resolve()),
        tree=PurePosixPath(tree.resolve()),
        folders=PurePosixPath(state_home() / cluster),
        data=PurePosixPath(state_home() / "data"),
        here=PurePosixPath(Path.cwd()),
    )
    return Machine(tuple(local_gpus()), os.cpu_count() or 1, places)


def local_gpus() -> list[str]:
    """Return the UUIDs from `nvidia-smi -L`; none if there is no driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    # If one GPU is lost, it lists the others and fails.
    return listed_gpus(listed.stdout)


def observe_workloads(cluster: str, names: Iterable[str]) -> dict[str, WorkloadState]:
    """Return the state of workloads."""
    return {name: _seen(JobFolder(cluster, name)) for name in names}


def _seen(folder: JobFolder) -> WorkloadState:
    run = folder.read_run()
    if run is None:
        return WorkloadState()
    supervised = folder.supervised()
    left = () if supervised else tuple(process.pid for process in run_processes(run.id))
    return WorkloadState(True, supervised, run.version, left)


def has_ended(folder: JobFolder) -> bool:
    """Return whether a workload's run has ended or never began."""
    run = folder.read_run()
    return run is None or _state(folder, run)[0] in ENDED


def _state(folder: JobFolder, run: Run) -> tuple[State, str, dict[str, Any]]:
    """Return a run's state, its message, and the supervisor's whole state file."""
    # Check the lock first: a supervisor writes its last state before it releases the lock.
    supervised = folder.supervised()
    written = folder.read_state()
    state, message = State(written.get("state", State.WAITING)), written.get("message", "")
    if written.get("run") != run.id:
        state, message = State.WAITING, ""
    if not supervised and state not in ENDED:
        state, message = State.FAILED, f"its supervisor is gone; `kit stop {run.job}` cleans up"
    return state, message, written


class WatchedFolder:
    """A workload's folder; each update reads only new lines of its logs."""

    def __init__(self, folder: JobFolder, run: Run) -> None:
        self.run = run
        self._folder = folder
        self._reader = Reader()
        self._tails = [
            Tail(run.job, process.host, Path(process.log))
            for process in run.processes
            if process.part != Role.RENDEZVOUS
        ]

    def status(self) -> JobStatus:
        """Return the current status."""
        run, reader = self.run, self._reader
        state, message, written = _state(self._folder, run)
        tails = (tail.read(last=state in ENDED) for tail in self._tails)
        reader.read_logs(chain.from_iterable(tails))
        state, limit = by_limit(state, reader)
        serves = run.kind is Kind.SERVER
        status = JobStatus(
            job=run.job,
            kind=run.kind,
            state=state,
            message="; ".join(filter(None, (limit, message))),
            started=run.started,
            ended=written.get("ended"),
            hosts=_hosts(run, written.get("exits", []), state, reader),
            progress=None,
            checkpoint=None if serves else _newest_checkpoint(run),
            urls=(f"http://{HERE}:{_port(run)}",) if serves else (),
        )
        return with_reports(status, reader)


def _port(run: Run) -> int:
    """Return the port of a server; the built-in one's is in its file."""
    variables = dict(run.processes[0].variables)
    if "KIT_PORT" in variables:
        return int(variables["KIT_PORT"])
    file = variables["KIT_SERVER"]
    try:
        return int(json.loads(Path(file).read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError):
        return 0


def _hosts(
    run: Run, exits: list[int | None], state: State, reader: Reader
) -> tuple[HostStatus, ...]:
    hosts = []
    for process, code in zip(run.processes, exits, strict=False):
        if process.part == Role.RENDEZVOUS:
            continue
        if code is None:
            doing = state if state not in ENDED else State.STOPPED
        else:
            doing = State.COMPLETED if code == 0 else State.FAILED
        if state is State.STOPPED:
            doing = State.STOPPED
        variables = dict(process.variables)
        visible = variables["CUDA_VISIBLE_DEVICES"]
        devices = tuple(visible.split(",")) if visible else ()
        host = HostStatus(process.host, process.workers, doing, code, devices)
        hosts.append(reader.of_host(replace(host, spare=bool(variables.get("KIT_SPARE")))))
    return tuple(hosts)


def _newest_checkpoint(run: Run) -> str | None:
    complete = [
        marker.parent
        for folder in run.checkpoints
        for marker in Path(folder).glob("step-*/COMPLETE")
    ]
    newest = max(complete, key=lambda path: path.name, default=None)
    return None if newest is None else str(newest)
