"""How workloads are doing, as values: the same under every target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kit.workload.types import Kind


class State(StrEnum):
    """How a workload, or its part on one host, is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({State.COMPLETED, State.STOPPED, State.FAILED})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is; None where a job's own script does not tell.

    `seconds_left` is by the speed so far.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    images_per_second: float | None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host's part: its processes and how they are doing.

    `devices` are the GPUs that it was given, `seen` the UUIDs of those that its container sees,
    `ranks` what torchrun made of its processes (both empty until they have said so), `message` what
    keeps it from running, or what ended it.
    """

    host: str
    processes: int
    state: State
    exit_status: int | None
    devices: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    message: str = ""
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job or one server; `job` is its name.

    `started`, `ended` and `last_step`, when the newest step was told, are in seconds since the
    epoch; `checkpoint` is the newest, or the one that the server answers with; `urls` are where it
    answers. `world_size` is of the present world, None until one has formed; `planned` is that of
    the plan. `restarts` is how often a host's workers were started again, the most of all hosts;
    `failure` is why they last failed, "" where they train again.
    """

    job: str
    kind: Kind
    state: State
    message: str
    started: float
    ended: float | None
    hosts: tuple[HostStatus, ...]
    progress: Progress | None
    checkpoint: str | None
    urls: tuple[str, ...] = ()
    world_size: int | None = None
    last_step: float | None = None
    restarts: int = 0
    failure: str = ""

    @property
    def planned(self) -> int:
        """Processes on all hosts, by the plan."""
        return sum(host.processes for host in self.hosts)

    @property
    def serves(self) -> bool:
        """Whether it is a server."""
        return self.kind is Kind.SERVER


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a host's output; `time` is in seconds since the epoch, where it is known."""

    job: str
    host: str
    text: str
    rank: int | None = None
    time: float | None = None
