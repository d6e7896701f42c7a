"""Containers of jobs and servers, as the engines of their hosts describe them: pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kit.engine import HostStatus, State
from kit.engine.streams import seconds
from kit.plan.storage import CHECKPOINTS
from kit.plan.work import work_of

PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
STACK = "com.docker.stack.namespace"
CLUSTER = "kit.cluster"
VERSION = "kit.file"

RUNS = frozenset({"running", "restarting", "paused"})
"""States of a container (GET /containers/<id>/json, State.Status) that has not ended."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a job or a server on one host.

    `service` is `train` or `serve`, or what helps them, `rendezvous` or `checkpoints`; `version` is
    the hash of the file that it was started from. `devices` are its GPUs (`all` for all of the
    host's), `restarts` how often it was started again of `most_restarts`; times are in seconds
    since the epoch. `fewest` and `most` are the hosts of its job.
    """

    id: str
    host: str
    job: str
    cluster: str
    service: str
    version: str
    status: str
    exit_status: int
    error: str
    healthy: bool
    created: float
    ended: float
    restarts: int
    most_restarts: int
    devices: tuple[str, ...]
    processes: int
    fewest: int
    most: int
    checkpoints: str

    @property
    def runs(self) -> bool:
        """Whether it runs, or will by itself."""
        return self.status in RUNS

    @property
    def trains(self) -> bool:
        """Whether it is a part of the training or of the server, and not what helps them."""
        return self.service not in {"rendezvous", "checkpoints"}

    def state(self) -> State:
        """Return how the host's part of the job is doing."""
        if self.status in {"running", "paused"}:
            return State.RUNNING
        if self.status == "restarting" or (self.status == "created" and not self.error):
            return State.WAITING
        # A server is started again whatever happens, until somebody ends it.
        if self.status == "exited" and self.service == "serve" and not self.error:
            return State.STOPPED
        if self.status == "exited" and self.exit_status == 0:
            return State.COMPLETED
        # Docker starts a failed one again until it has done so often enough: who ended before that
        # was ended from outside.
        if self.status == "exited" and not self.error and self.restarts < self.most_restarts:
            return State.STOPPED
        return State.FAILED

    def message(self) -> str:
        """Say what keeps it from running, or what ended it."""
        limit = f" of {self.most_restarts}" if self.most_restarts else ""
        again = f"started again {self.restarts}{limit} times"
        if self.error:
            return self.error
        if self.status == "restarting":
            return f"ended with exit status {self.exit_status}, {again}"
        if self.status == "paused":
            return "is paused"
        if self.status == "running" and not self.healthy:
            return "is not healthy: has it lost its GPUs?"
        if self.status == "running":
            return f"was {again}" if self.restarts else ""
        if self.state() is State.FAILED:
            return f"ended with exit status {self.exit_status}, {again}"
        return ""

    def part(self, ranks: tuple[int, ...], seen: tuple[str, ...] = ()) -> HostStatus:
        """Return its host's part of the job."""
        state = self.state()
        ended = None if self.status in {"created", "running", "paused"} else self.exit_status
        return HostStatus(
            self.host, self.processes, state, ended, self.devices, ranks, self.message(), seen
        )


def job_of(labels: dict[str, str]) -> str | None:
    """Return the job or server that a container with these labels belongs to, by any engine."""
    owner = labels.get(PROJECT) or labels.get(STACK) or ""
    return work_of(owner)


def container(host: str, inspected: dict[str, Any]) -> Container:
    """Read what GET /containers/<id>/json answers for a container of a job."""
    config, state, limits = inspected["Config"], inspected["State"], inspected["HostConfig"]
    labels = config["Labels"] or {}
    environment = dict(line.partition("=")[::2] for line in config["Env"] or [])
    fewest, _, most = environment.get("KIT_NNODES", "1:1").partition(":")
    folder = environment.get("KIT_CHECKPOINTS") or CHECKPOINTS
    return Container(
        id=inspected["Id"],
        host=host,
        job=job_of(labels) or "",
        cluster=labels.get(CLUSTER, ""),
        service=labels.get(SERVICE, ""),
        version=labels.get(VERSION, ""),
        status=state["Status"],
        exit_status=state["ExitCode"],
        error=state.get("Error", ""),
        healthy=(state.get("Health") or {}).get("Status") != "unhealthy",
        created=seconds(inspected["Created"]),
        ended=seconds(state["FinishedAt"]),
        restarts=inspected["RestartCount"],
        most_restarts=limits["RestartPolicy"]["MaximumRetryCount"],
        devices=_devices(limits.get("DeviceRequests") or [], environment),
        processes=int(environment.get("KIT_NPROC") or environment.get("KIT_REPLICAS") or "0"),
        fewest=int(fewest),
        most=int(most),
        checkpoints=_source(inspected["Mounts"], folder),
    )


def _devices(requests: list[dict[str, Any]], environment: dict[str, str]) -> tuple[str, ...]:
    if requests:
        named = tuple(device for one in requests for device in one["DeviceIDs"] or [])
        return named or ("all",)
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "void")
    return () if visible in {"", "void", "none"} else tuple(visible.split(","))


def _source(mounts: list[dict[str, Any]], folder: str) -> str:
    """Return the volume or the folder of the host that is mounted at a folder."""
    found = next((mount for mount in mounts if mount["Destination"] == folder), {})
    return str(found.get("Name") or found.get("Source") or folder)
