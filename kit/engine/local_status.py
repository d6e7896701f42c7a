"""What files tell of the runs on this machine: how they are doing, and what they print."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from kit.engine import ENDED, HostStatus, JobStatus, LogLine, Progress, State, is_server
from kit.engine.printed import Printed, split
from kit.engine.state import HELPER, JobFolder, Run


def has_ended(folder: JobFolder) -> bool:
    """Whether a job's run is over, or there never was one."""
    run = folder.read_run()
    return run is None or _state(folder, run)[0] in ENDED


def _state(folder: JobFolder, run: Run) -> tuple[State, str, dict[str, Any]]:
    """Return how a run is doing, what is to be said of it, and what its supervisor has written."""
    # The lock is asked first: a supervisor writes its last state before it lets go.
    supervised = folder.supervised()
    written = folder.read_state()
    state, message = State(written.get("state", State.WAITING)), written.get("message", "")
    if written.get("run") != run.id:
        state, message = State.WAITING, ""
    if not supervised and state not in ENDED:
        state, message = State.FAILED, f"its supervisor is gone; `kit stop {run.job}` cleans up"
    return state, message, written


def job_status(folder: JobFolder) -> JobStatus | None:
    """Return the status of a job or a server; None where it was never started."""
    run = folder.read_run()
    if run is None:
        return None
    state, message, written = _state(folder, run)
    printed, serves = _printed(run), is_server(run.job)
    return JobStatus(
        job=run.job,
        state=state,
        message=message,
        started=run.started,
        ended=written.get("ended"),
        hosts=_hosts(run, written.get("exits", []), state, printed),
        progress=_progress(run),
        checkpoint=printed.checkpoint if serves else _newest_checkpoint(run),
        urls=(f"http://127.0.0.1:{_port(run)}",) if serves else (),
    )


class Tail:
    """Reads what was appended to a log since the last look, in whole lines."""

    def __init__(self, job: str, host: str, path: Path) -> None:
        self._job = job
        self._host = host
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self, *, last: bool) -> list[LogLine]:
        """Return the lines; at the `last` look also one that has no end."""
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
        tail = Tail(run.job, process.host, Path(process.log))
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
