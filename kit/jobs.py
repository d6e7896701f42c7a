"""Jobs as values. `kit.config` makes them, `kit.plan` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kit.model import DataSet, JobHosts, Limits, Mount, Receiver, Secret
from kit.sharing import Queued
from trainer.contract.code import DIGITS, code_name
from trainer.contract.job import Checkpoint, Exchange, Faults, Parallel, Train


class Framework(StrEnum):
    """The program that starts the processes of a script."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A custom Python file that comes with a job; `name` is without its folder."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Package:
    """The code that is sent with a job: an archive of a folder, relative to the inventory's.

    `exclude` and `include` select its `files`, of `bytes` in total. `sha256` is the archive's.
    `secrets` are names of files that may hold secrets, `left_out` other files that are not sent.
    A deploy sets `source` to the folder's commit. `here`: the folder is on this machine; without
    it, only the version is known.
    """

    folder: str
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    sha256: str
    files: int
    bytes: int
    secrets: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    source: str = ""
    here: bool = True

    @property
    def version(self) -> str:
        """The version, as shown to users."""
        return self.sha256[:DIGITS]

    @property
    def described(self) -> str:
        """The folder and its commit, as shown to users."""
        return f"{self.folder}, {self.source}" if self.source else self.folder

    @property
    def data_set(self) -> DataSet:
        """The data set that carries it to the hosts, named after its content."""
        return DataSet(code_name(self.sha256), 1)


@dataclass(frozen=True, slots=True)
class Session:
    """The settings of a session: a persistent folder on its host, and the SSH keys of its users.

    `started` differs between starts; a container that restarts keeps it.
    """

    home: str
    keys: tuple[str, ...]
    started: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Exactly one of `train`, `command`, `session` is set; `stop_grace` is in seconds.

    `exchange` is set with `train`. `step_seconds` is the measured computing time of a step.
    `metrics_port` is the port of each host's metrics. `user` is the containers' user (None: the
    image's). `data` are its data sets. `framework` is that of `command`,
    `setup` are lines for sh that run before it. `quiet` is the time in seconds after which its
    ranks are reported as silent (None: the launcher's default; 0: never). It ends `max_duration`
    seconds after its start, or after `idle` seconds without computing. `notify` is for this job
    only. `code` are the files with the custom functions that `train` names. `package` is
    the folder with its code. With `queue`, the queue decides which of its hosts train.
    """

    name: str
    file: str
    image: str
    train: Train | None
    command: tuple[str, ...]
    working_dir: str | None
    reference_batch: int | None
    batch_size: int | None
    parameters: int | None
    step_seconds: float | None
    exchange: Exchange | None
    checkpoint: Checkpoint
    faults: Faults
    parallel: Parallel
    hosts: JobHosts
    mounts: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[Secret, ...]
    nccl: tuple[tuple[str, str], ...]
    limits: Limits
    port: int | None
    metrics_port: int | None
    stop_grace: int
    user: str | None
    data: tuple[DataSet, ...]
    framework: Framework = Framework.PYTORCH
    setup: tuple[str, ...] = ()
    quiet: int | None = None
    max_duration: int | None = None
    idle: int | None = None
    notify: tuple[Receiver, ...] = ()
    code: tuple[CodeFile, ...] = ()
    package: Package | None = None
    session: Session | None = None
    queue: Queued | None = None

    @property
    def fetched(self) -> tuple[DataSet, ...]:
        """The data sets that each host fetches before the job starts."""
        return tuple(each for each in self.data if not each.stream)

    @property
    def streamed(self) -> tuple[DataSet, ...]:
        """The data sets that the hosts read from the data server while they train."""
        return tuple(each for each in self.data if each.stream)
