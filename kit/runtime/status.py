"""The status of workloads as values, the same for every target.

It comes from the containers and their events, so that it cannot become stale. kit stores only how a
job ended, when `kit stop` removes its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from kit.errors import KitError
from kit.queue.record import Record
from kit.values import show_age
from kit.workload.types import Kind


class State(StrEnum):
    """The state of a workload, or of its part on one host."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


UNREACHED = "cannot be reached"
"""The message of a host that does not answer kit."""
ENDED = frozenset({State.COMPLETED, State.STOPPED, State.FAILED})
MISTAKE = 2
"""Exit status of the launcher for a mistake in the input or the script: a restart is useless."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training. A value is None if the job's script does not report it.

    `seconds_left` is an estimate from the speed so far. `metrics` are those of a text, or of
    a custom model. `mfu` is the share of the GPUs' peak that the model's operations use.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    images_per_second: float | None
    seconds_left: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    mfu: float | None = None

    @property
    def speed(self) -> str:
        """The speed as text: in tokens for a text, with the share of the GPUs' peak if known."""
        if self.tokens_per_second is not None:
            used = f", MFU {self.mfu:.1%}" if self.mfu is not None else ""
            return f"{self.tokens_per_second:,.0f} tokens/s{used}"
        return "" if self.images_per_second is None else f"{self.images_per_second:,.0f} images/s"


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host's part: its processes and their state.

    A `spare` trains only while another host is lost. `devices` are the assigned GPUs, `seen` the
    UUIDs of the GPUs visible in its container, `ranks` those in the present world (both empty until
    reported). `message` is the reason why it does not run or why it ended. `left_out`: it takes no
    part until a person releases it. `starts` is the number of its container's starts. `healthy` is
    None unless a server was checked.
    """

    host: str
    processes: int
    state: State
    exit_status: int | None
    devices: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    message: str = ""
    seen: tuple[str, ...] = ()
    left_out: bool = False
    starts: int = 1
    healthy: bool | None = None
    spare: bool = False


@dataclass(frozen=True, slots=True)
class RankPace:
    """The mean time of a rank's newest steps, in seconds; `work` is data and compute.

    `time` is that of the report, in seconds since the epoch.
    """

    rank: int
    host: str
    time: float
    step: int
    seconds: float
    work: float
    exchange: float


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """The report of a session about itself; see `trainer.contract.session_events`."""

    until: float
    connected: int
    unused: float
    idle: float
    ssh: str
    jupyter: str
    ended: str


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The job's owner, and its waiting time in the queue; `why` is "" if it has hosts."""

    owner: str
    priority: int
    waited_seconds: float
    why: str = ""

    @property
    def words(self) -> str:
        """The status as text."""
        waited = f"waited {show_age(self.waited_seconds)}"
        return f"owner {self.owner}, priority {self.priority}, {waited}"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job or one server; `job` is its name.

    `started`, `ended` and `last_step` (the report of the newest step) are in seconds since the
    epoch. `checkpoint` is the newest, or a server's current one. `urls` are a server's addresses.
    `world_size` is the current one, None before a world has formed; `planned` is the plan's.
    `restarts` is the largest number of restarts of a host's workers. `failure` is the reason of
    the last failure, "" if they train again. `paces` are those of the ranks that report them.
    `warning` says that a training has learned nothing. `exit_code` is the exit status of the
    process that failed last. `session` is set for a session that has begun,
    `queue` for a job of the queue.
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
    paces: tuple[RankPace, ...] = ()
    warning: str = ""
    exit_code: int | None = None
    session: SessionStatus | None = None
    queue: QueueStatus | None = None

    @property
    def planned(self) -> int:
        """Processes on all hosts in the plan, without the spares'."""
        return sum(host.processes for host in self.hosts if not host.spare)

    @property
    def serves(self) -> bool:
        """Whether it is a server."""
        return self.kind is Kind.SERVER


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a host's output; `time` is in seconds since the epoch, or None."""

    job: str
    host: str
    text: str
    rank: int | None = None
    time: float | None = None


def unreached(status: JobStatus) -> list[str]:
    """Return the hosts of a workload that do not answer kit."""
    return [each.host for each in status.hosts if each.message == UNREACHED]


def status_to_json(status: JobStatus) -> dict[str, Any]:
    """Return the final status of a workload as a JSON object, to store it after its containers."""
    return asdict(status)


class NoLinesError(KitError):
    """The lines of a workload were deleted with its containers."""


def without_lines(status: JobStatus) -> NoLinesError:
    """Return the error for a workload whose lines were deleted with its containers."""
    what = f"{status.job} has no lines any more: it {status.state}, and its containers were removed"
    reason = "\n".join(f"  {each}" for each in (status.failure, status.message) if each)
    return NoLinesError(f"{what}\n{reason}".rstrip(), f"`kit deploy {status.job}` starts it again")


def status_from_json(stored: dict[str, Any]) -> JobStatus:
    """Return the status of a JSON object.

    Raises:
        ValueError, KeyError, TypeError: Another version of kit wrote it.
    """
    hosts = tuple(
        HostStatus(
            **{
                **host,
                "state": State(host["state"]),
                **{name: tuple(host[name]) for name in ("devices", "ranks", "seen")},
            }
        )
        for host in stored["hosts"]
    )
    parts = {
        "kind": Kind(stored["kind"]),
        "state": State(stored["state"]),
        "hosts": hosts,
        "progress": Progress(**stored["progress"]) if stored["progress"] else None,
        "urls": tuple(stored["urls"]),
        "paces": tuple(RankPace(**each) for each in stored.get("paces", ())),
        "session": SessionStatus(**stored["session"]) if stored.get("session") else None,
        "queue": QueueStatus(**stored["queue"]) if stored.get("queue") else None,
    }
    return JobStatus(**{**stored, **parts})


def in_queue(status: JobStatus, record: Record | None, now: float) -> JobStatus:
    """Return the status of a job with its state in the queue, which may have given it no host."""
    if record is None:
        return status
    waits = record.ended is None and not status.hosts
    why = record.reason if waits else ""
    message = f"in the queue: {why}".removesuffix(": ") if waits else status.message
    place = QueueStatus(record.owner, record.priority, record.waited_until(now), why)
    return replace(status, message=message, queue=place)
