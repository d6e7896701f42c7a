"""Containers of jobs and servers as pure values, from the engines of their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.queue.words import OWNER
from kit.runtime.endings import HOPELESS, never_began
from kit.runtime.status import HostStatus, State
from kit.values import count
from kit.workload.names import owner_of
from kit.workload.types import Kind, Role

PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
STACK = "com.docker.stack.namespace"
CLUSTER = "kit.cluster"
VERSION = "kit.file"

SINCE = "kit.queue.since"
"""The label of a container that the queue has made: the time at which its job got the host."""
ON, LEAVING = "-on", "-leaving"
"""The ends of the names of such containers: one that trains, and one that was asked to leave."""

RUNS = frozenset({"running", "restarting", "paused"})
"""The states of a container that has not ended (GET /containers/<id>/json, State.Status)."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a job or a server on one host.

    `job` is the name of the job or server. `service` is its role, "" for another engine's.
    `version` is the hash of its file. `devices` are its GPUs (`all`: all GPUs). `restarts` is the
    number of its restarts, at most `most_restarts`. Times are in seconds since the epoch.
    `spare`: it trains only while another host is lost. Its job continues after the loss of
    `dispensable` hosts; for a built-in training, only the coordinator knows this number.
    `coordinated`: a coordinator decides with whom it trains. `since` is the time at which the
    queue gave its job the host. `spec` is the engine's whole answer.
    """

    id: str
    host: str
    job: str
    kind: Kind
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
    spare: bool
    dispensable: int
    checkpoints: str
    image: str
    coordinated: bool = False
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    since: float | None = None
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def runs(self) -> bool:
        """Return whether it runs or will restart by itself."""
        return self.status in RUNS

    @property
    def hopeless(self) -> bool:
        """Return whether Docker starts it again although no restart can help."""
        restarts = self.status == "restarting" and self.kind is Kind.JOB
        return restarts and self.exit_status in HOPELESS

    @property
    def waits(self) -> bool:
        """Return whether it waits, and the queue copies it when its job gets hosts."""
        return OWNER in self.labels and self.since is None

    @property
    def idle(self) -> bool:
        """Return whether it has no part in a training: it waits, or has left its job."""
        return self.waits or (self.name.endswith(LEAVING) and not self.runs)

    @property
    def trains(self) -> bool:
        """Return whether it trains or answers requests; other containers only assist these."""
        role = Role.of(self.service)
        return not self.idle and (role is None or role.works)

    def works_for(self, name: str) -> bool:
        """Return whether it trains or answers for this job or server, now or after a restart."""
        return self.job == name and self.trains and self.runs and not self.hopeless

    def state(self) -> State:
        """Return the state of the host's part of the job."""
        if self.status in {"running", "paused"}:
            return State.RUNNING
        if self.hopeless:
            return State.FAILED
        if self.status == "restarting" or (self.status == "created" and not self.error):
            return State.WAITING
        # Docker always restarts a server, so an exited one was stopped by a user.
        if self.status == "exited" and self.kind is Kind.SERVER and not self.error:
            return State.STOPPED
        if self.status == "exited" and self.exit_status == 0:
            return State.COMPLETED
        # Docker restarts a failed container up to the limit: one that ended before was stopped.
        if self.status == "exited" and not self.error and self.restarts < self.most_restarts:
            return State.STOPPED
        return State.FAILED

    def message(self) -> str:
        """Return the reason why it does not run or why it ended."""
        most = f"{self.restarts} of {self.most_restarts} times"
        again = f"started again {most if self.most_restarts else count(self.restarts, 'time')}"
        why = ""
        if self.status != "running":
            why = never_began(self.kind, self.image, self.exit_status, self.error)
        if self.error:
            return why or self.error
        how = why or f"ended with exit status {self.exit_status}"
        if self.status == "restarting":
            return f"{how}, {again}"
        if self.status == "paused":
            return "is paused"
        if self.status == "running" and not self.healthy:
            return "is not healthy: has it lost its GPUs? `kit deploy` starts it again"
        if self.status == "running":
            return f"was {again}" if self.restarts else ""
        if self.state() is State.FAILED:
            return f"{how}, {again}"
        return ""

    def part(self) -> HostStatus:
        """Return the status of its host's part of the job."""
        state = self.state()
        ended = None if self.status in {"created", "running", "paused"} else self.exit_status
        return HostStatus(
            self.host,
            self.processes,
            state,
            ended,
            self.devices,
            message=self.message(),
            starts=self.restarts + 1,
            spare=self.spare,
        )


def owner(labels: dict[str, str]) -> tuple[Kind, str] | None:
    """Return the job or server of a container with these labels, for any engine."""
    return owner_of(labels.get(PROJECT) or labels.get(STACK) or "")


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host.

    `gpus` are the UUIDs from `nvidia-smi -L`. `hook`: Docker finds NVIDIA's hook. `ports` are the
    ports in use. `containers` are those of all jobs. `images` and `volumes` are the requested names
    that exist. `data` are the containers of the data services.
    """

    gpus: tuple[str, ...]
    hook: bool
    ports: frozenset[int]
    containers: tuple[Container, ...]
    images: frozenset[str]
    volumes: frozenset[str]
    data: tuple[Container, ...] = ()
