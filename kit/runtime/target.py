"""The interface of a target, which the commands use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from kit.queue.carrier import Queue
from kit.runtime.access import Access
from kit.runtime.history import Deployment
from kit.runtime.record_files import FoundRecords
from kit.runtime.status import JobStatus, LogLine
from kit.runtime.steps import Step
from kit.values import Say
from kit.workload.types import Kind, Workload


@dataclass(frozen=True, slots=True)
class Known:
    """A job or a server with output to read or containers to end, and its hosts."""

    kind: Kind
    hosts: tuple[str, ...]


Agree = Callable[[Sequence[Deployment]], None]
"""Receives the history, the newest first, and raises an error to prevent a deploy."""


class Target(Protocol):
    """The operations of every target on jobs and servers.

    `tied_to_terminal`: Ctrl-C during following also stops the jobs. `on_hosts`: containers run on
    the hosts of the plan; otherwise processes run on this machine, with its GPUs.
    """

    tied_to_terminal: ClassVar[bool]
    on_hosts: ClassVar[bool]

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Return the steps of a `deploy` without executing them.

        Raises:
            KitError: The workloads cannot be deployed, or the hosts cannot be queried.
        """

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say, agree: Agree) -> None:
        """Start the workloads and return when they run. `fresh` deletes the checkpoints of jobs.

        `agree` is called before anything changes; its error ends the deploy.

        Raises:
            KitError: A workload cannot be started; the message names what remains.
        """

    def break_lock(self) -> None:
        """Remove the lock of another deploy, if the target has locks."""

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status of all known workloads, including ended ones."""

    def missing(self) -> tuple[str, ...]:
        """Return a line for each rendered part, other than workloads, that is not deployed."""

    def known(self) -> Mapping[str, Known]:
        """Return the workloads with output to read or containers to end, by name."""

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the output of the workloads' hosts; with `follow` until all have ended.

        Lines before `since`, in seconds since the epoch, are skipped.

        Raises:
            KitError: A workload is unknown.
        """

    def stop(self, name: str) -> JobStatus:
        """End a workload gracefully, with a last checkpoint, and return its final status.

        Raises:
            KitError: It is not running.
        """

    def release(self, job: str, host: str) -> None:
        """Make a host that is left out take part in a job again.

        Raises:
            KitError: The host cannot be reached.
        """

    def access(self, name: str, host: str) -> Access:
        """Return the access for commands beside a workload's processes on a host.

        Raises:
            KitError: The host cannot be reached, or no container of it runs there.
        """

    def commands(self, script: str) -> Mapping[str, list[str]]:
        """Return the commands that run a shell script at each place with GPUs, by its name."""

    def start_data(self, names: Sequence[str], say: Say) -> None:
        """Bring up the data services of these hosts and of the storage host.

        Raises:
            KitError: They cannot be started.
        """

    def data_folder(self) -> Path | None:
        """Return the folder of the data sets, or None if they are in volumes of the hosts."""

    def stop_data(self) -> bool:
        """End the data services of all hosts, and return whether there were any to end.

        Those of a Swarm belong to its platform: `kit swarm down` ends them.
        """

    def records(self, job: str, kind: str, source: str) -> FoundRecords:
        """Return the files of the records of a job's runs, from all hosts that answer.

        Its checkpoints are in the volume or the hosts' folder `source`; `kind` is `volume` or
        `bind`.

        Raises:
            KitError: The hosts cannot be queried.
        """

    def history(self) -> tuple[Deployment, ...]:
        """Return the deployments, the newest first."""

    def queue(self) -> Queue | None:
        """Return the queue of jobs, or None if the target has none."""
