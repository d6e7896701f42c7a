"""Execution of steps on this machine: each workload has a supervisor."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import singledispatchmethod
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from kit.errors import KitError
from kit.runtime.history import deployment
from kit.runtime.source import Source
from kit.runtime.steps import Step
from kit.secrets import own_key
from kit.targets.local.decide import DeleteCheckpoints, End, Start, StartData
from kit.targets.local.folder import (
    SERVICES,
    JobFolder,
    Run,
    add_to_history,
    key_file,
    state_home,
)
from kit.targets.local.supervise import run_processes
from kit.workload.types import Kind
from trainer.contract.bearer import KEY

POLL = 0.1
"""Seconds between two reads of the state."""
START = 30.0
"""Seconds for the start of a supervisor, which only starts Python."""
GRACE = 10
"""Seconds for the end of the data services, as with Docker."""


class Executor:
    """Executes steps; `secrets` are the values by workload and name."""

    def __init__(
        self,
        cluster: str,
        secrets: Mapping[str, Mapping[str, str]],
        source: Source = Source(),  # noqa: B008
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._secrets = secrets

    @singledispatchmethod
    def execute(self, step: Step) -> None:
        """Execute a step.

        Raises:
            KitError: It failed.
        """
        raise AssertionError(step)

    @execute.register
    def _(self, step: End) -> None:
        end(JobFolder(self._cluster, step.name))

    @execute.register
    def _(self, step: DeleteCheckpoints) -> None:
        for folder in step.folders:
            shutil.rmtree(folder, ignore_errors=True)

    @execute.register
    def _(self, step: Start) -> None:
        work = step.workload
        for url in work.urls:
            _require_free(work.name, urlsplit(url).port or 0)
        run = Run(
            id=uuid.uuid4().hex,
            job=work.name,
            kind=work.kind,
            version=step.version,
            started=time.time(),
            nodes_min=work.needed,
            stop_grace=work.working[0].grace or 0,
            checkpoints=step.checkpoints,
            processes=step.processes,
        )
        key = {KEY: own_key(key_file(self._cluster))} if work.keyed else {}
        self._start(run, {**self._secrets[work.name], **key})
        add_to_history(self._cluster, deployment(work, run.started, self._source))

    @execute.register
    def _(self, step: StartData) -> None:
        end(JobFolder(self._cluster, SERVICES))
        run = Run(
            id=uuid.uuid4().hex,
            job=SERVICES,
            kind=Kind.SERVER,
            version=step.version,
            started=time.time(),
            nodes_min=len(step.processes),
            stop_grace=GRACE,
            checkpoints=(),
            processes=step.processes,
        )
        self._start(run, {KEY: own_key(key_file(self._cluster))})

    def _start(self, run: Run, secrets: Mapping[str, str]) -> None:
        folder = JobFolder(self._cluster, run.job)
        folder.create()
        for path in (state_home() / "data", *map(Path, run.checkpoints)):
            path.mkdir(parents=True, exist_ok=True)
        folder.write_run(run)
        log = folder.path / "supervisor.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "kit.targets.local.supervise", self._cluster, run.job],
                env={**os.environ, **secrets},  # Secrets must not be written to run.json.
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


def _require_free(name: str, port: int) -> None:
    """Refuse a server's port on which another program listens and would answer in its place.

    Raises:
        KitError: The port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            what = f"{name} cannot listen on port {port} of this machine: {error.strerror}"
            fix = "end the program that listens there (`ss -tlnp`), or write another `port:`"
            raise KitError(what, fix) from error


def end(folder: JobFolder) -> bool:
    """End the processes of a run and wait; return whether there were any."""
    run = folder.read_run()
    left = run_processes(run.id) if run is not None else []
    if folder.supervised():
        os.kill(folder.read_state()["pid"], signal.SIGTERM)
        while folder.supervised():
            time.sleep(POLL)
        return True
    for process in left:
        with suppress(psutil.NoSuchProcess):  # It may have ended with another one.
            process.kill()
    return bool(left)
