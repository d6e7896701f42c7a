"""What every target can do: the interface that the commands use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kit.runtime.history import Deployment
from kit.runtime.status import JobStatus, LogLine
from kit.runtime.steps import Say, Step
from kit.workload.types import Kind, Workload


@dataclass(frozen=True, slots=True)
class Known:
    """A job or a server of which something is there to read or to end, and its hosts."""

    kind: Kind
    hosts: tuple[str, ...]


class Target(Protocol):
    """What every target can do, for jobs and for servers.

    `tied_to_terminal`: Ctrl-C where jobs are followed is meant for the jobs too.
    """

    tied_to_terminal: ClassVar[bool]

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Return what `deploy` would do now, and do nothing.

        Raises:
            KitError: The workloads cannot be deployed, or the hosts cannot be asked.
        """

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say) -> None:
        """Start the workloads and return when they run; `fresh` jobs forget their checkpoints.

        Raises:
            KitError: One of them cannot be started; the message says what is left.
        """

    def break_lock(self) -> None:
        """Take the lock from whoever is deploying, where the target knows one."""

    def status(self) -> tuple[JobStatus, ...]:
        """Return all workloads that the target knows of, ended ones too."""

    def known(self) -> Mapping[str, Known]:
        """Return the workloads of which something is there to read or to end, by their names."""

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield what the workloads' hosts have printed; with `follow` until all have ended.

        `since` leaves out what is older, in seconds since the epoch.

        Raises:
            KitError: One of the workloads is not known.
        """

    def stop(self, name: str) -> JobStatus:
        """End a workload gracefully, with a last checkpoint, and return how it ended.

        Raises:
            KitError: It is not running.
        """

    def history(self) -> tuple[Deployment, ...]:
        """Return what was deployed, the newest first."""
