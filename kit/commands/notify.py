"""`kit notify`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import click

from kit.commands.options import with_paths
from kit.errors import InputError, KitError, one_line
from kit.paths import Paths, launcher_path
from kit.project import load_lowered
from kit.secrets import read_secrets
from kit.workload.notify import NOTIFY
from kit.workload.types import Role, Workload
from trainer.contract.words import nearest

WAIT = 15.0
"""Seconds for all receivers."""
MESSAGE = "kit notify: your receiver works"


@click.command("notify", short_help="Send a test to the receivers of a job.")
@click.argument("job")
@with_paths
def command(job: str, paths: Paths) -> int:
    """Send a test notification to all receivers of a job, from this machine.

    It shows whether URLs, tokens and keys are right. The kind of the notification is test. The
    exit status is 1 if a receiver did not take it within 15 s.
    """
    work = _job(job, {each.name: each for each in load_lowered(paths).workloads})
    part = next(each for each in work.parts if each.role is Role.RENDEZVOUS)
    variables = {each.name: str(each.value) for each in part.environment if each.name == NOTIFY}
    if not variables:
        fix = "write `notify: [{url: …}]` in the inventory or in the job"
        raise InputError(f"job {job} notifies nobody", fix)
    secrets = read_secrets(replace(work, secrets=part.secrets))
    lines, faults = _send({**secrets, **variables})
    for line in lines:
        click.echo(_plain(line))
    for line in faults:
        click.echo(_plain(line), err=True)
    return 1 if faults else 0


def _job(job: str, workloads: Mapping[str, Workload]) -> Workload:
    jobs = {name: each for name, each in workloads.items() if each.rendezvous}
    if job not in jobs:
        raise InputError(f"there is no job {job}", nearest(job, jobs))
    return jobs[job]


def _send(variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Send a test by the launcher's notifier process; return its lines and the errors."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, str(launcher_path()), "notifier"],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **variables, "KIT_HOST": "here"},
            )
        except OSError as error:
            raise KitError(f"{sys.executable}: {error.strerror}") from error
        theirs.close()
        ours.settimeout(WAIT)
        notice = {"kind": "test", "id": f"test-{time.time_ns():x}", "message": MESSAGE}
        late = []
        try:
            ours.sendall(json.dumps({**notice, "time": round(time.time(), 3)}).encode() + b"\n")
            _await_settled(ours)
        except TimeoutError:
            late = [f"not all receivers have taken it within {WAIT:.0f} s"]
        except OSError:
            pass  # The process has ended, and says why.
        ours.shutdown(socket.SHUT_RDWR)
        out, err = process.communicate()
    return out.splitlines(), [*err.splitlines(), *late]


def _await_settled(connection: socket.socket) -> None:
    """Wait until the notice is sent or given up; the process sends an object for each failure."""
    with connection.makefile("rb") as lines:
        for line in lines:
            if isinstance(json.loads(line), str):
                return


def _plain(line: str) -> str:
    return one_line(line.removeprefix("launch here: "))
