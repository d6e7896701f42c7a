"""Engines carry a plan out; they decide nothing that the plan did not.

One interface: this machine, Compose on each host, Swarm stacks.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from kit.model import SERVER_PREFIX
from kit.plan.work import JobPlan, Work
from kit.values import count


class State(StrEnum):
    """How a job, or its part on one host, is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({State.COMPLETED, State.STOPPED, State.FAILED})


def is_server(name: str) -> bool:
    """Whether a name is a server's, and not a job's."""
    return name.startswith(SERVER_PREFIX)


Say = Callable[[str], None]
"""What takes a line for the person who waits."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is to be done, where, and why: `cause` is what was seen that asks for it."""

    where: str
    what: str
    cause: str


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
    """One job, or one server, whose name begins as servers' do.

    `started` and `ended` are seconds since the epoch; `checkpoint` is the newest, or the one that
    the server answers with; `urls` are where it answers.
    """

    job: str
    state: State
    message: str
    started: float
    ended: float | None
    hosts: tuple[HostStatus, ...]
    progress: Progress | None
    checkpoint: str | None
    urls: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """Whether it is a server."""
        return is_server(self.job)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a host's output; `time` is in seconds since the epoch, where it is known."""

    job: str
    host: str
    text: str
    rank: int | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was deployed when (seconds since the epoch), by whom, and from which input.

    `inventory` and `job_hash` are hashes of what the files say, `image` is the reference that ran.
    """

    job: str
    time: float
    by: str
    inventory: str
    job_hash: str
    image: str


def deployment(job: Work, time: float) -> Deployment:
    """Return what is to be written down on what was started at `time`."""
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    return Deployment(job.name, time, by, job.inventory_hash, job.job_hash, job.image)


def size(job: Work) -> str:
    """Say how large a job or a server is that was started."""
    hosts = count(len(job.placements), "host")
    if isinstance(job, JobPlan):
        return f"{hosts}, world size {job.world_size}"
    return f"{hosts}, {count(job.replicas, 'GPU')}: {', '.join(job.urls)}"


def left_alone(work: Work) -> str:
    """Say why a deploy starts nothing of a job or a server."""
    runs = "runs already, from the same file"
    return f"{work.name}: {runs if work.placements else 'rests, as no GPU is given to it'}"


class Engine(Protocol):
    """What every engine can do, for jobs and for servers.

    `tied_to_terminal`: Ctrl-C where jobs are followed is meant for the jobs too.
    """

    tied_to_terminal: ClassVar[bool]

    def preview(self, jobs: Sequence[Work], *, fresh: bool) -> tuple[Step, ...]:
        """Return what `deploy` would do now, and do nothing.

        Raises:
            KitError: The jobs cannot be deployed, or the hosts cannot be asked.
        """

    def deploy(self, jobs: Sequence[Work], *, fresh: bool, say: Say) -> None:
        """Start the jobs and return when they run; `fresh` jobs forget their checkpoints first.

        Raises:
            KitError: One of them runs already, or cannot be started; the message says what is left.
        """

    def break_lock(self) -> None:
        """Take the lock from whoever is deploying, where the engine knows one."""

    def status(self) -> tuple[JobStatus, ...]:
        """Return all jobs that the engine knows of, ended ones too."""

    def known(self) -> dict[str, tuple[str, ...]]:
        """Return the jobs of which something is there to read or to end, and the hosts of each."""

    def logs(
        self, jobs: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield what the jobs' hosts have printed; with `follow` until all jobs have ended.

        `since` leaves out what is older, in seconds since the epoch.

        Raises:
            KitError: One of the jobs is not known.
        """

    def stop(self, job: str) -> JobStatus:
        """End a job gracefully, with a last checkpoint, and return how it ended.

        Raises:
            KitError: It is not running.
        """

    def history(self) -> tuple[Deployment, ...]:
        """Return what was deployed, the newest first."""
