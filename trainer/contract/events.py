"""Events: the output of containers for programs. event_lines.py prints and reads them.

They are lines of standard output with a mark: they need no port and no volume, keep the order of
the lines, and work with every engine. Docker rotates logs: long runs report progress less often.

Lines for people may change at any time; events may not. The version in mark.py rises when a reader
of old events would misread new ones. New events and new fields do not raise it: readers ignore
unknown ones.

Each event has the whole known state of its subject, so that a reader can begin anywhere in a log:
`Progress` has the newest accuracy and checkpoint, `Member` is repeated every minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, dataclass_transform

FailureClass = Literal[
    "input",  # The job file, the environment or the script is wrong: a restart repeats it.
    "data",  # A data set is missing or damaged.
    "disk",  # A checkpoint or a file cannot be written.
    "memory",  # The batch does not fit a GPU.
    "loss",  # A loss is not finite.
    "parameters",  # Ranks have different parameters.
    "peer",  # Another rank is gone or silent; a restart resumes.
    "rendezvous",  # The coordinator is gone, or never answered.
    "setup",  # A line of the job's setup has failed; a restart runs it again.
    "gpu",  # The container lacks a GPU that it was given.
    "worker",  # A process ended by itself, with an exit code.
    "killed",  # A process was ended by a signal.
]
KINDS: dict[str, type[Event]] = {}
"""The events by name."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Event:
    """The base of all events; `time` is in seconds since 1970, by the clock of the host."""

    NAME: ClassVar[str]
    time: float = 0.0

    def __init_subclass__(cls) -> None:
        """Make the class a frozen dataclass, and add it to KINDS."""
        KINDS[cls.NAME] = dataclass(frozen=True, kw_only=True)(cls)


class Started(Event):
    """The launcher or the server begins in a container; a server repeats it among its other lines.

    `gpus` are the UUIDs of the GPUs that the container sees; of a GPU split by MIG, those of its
    instances.
    """

    NAME = "started"
    gpus: tuple[str, ...] = ()


class Fetch(Event):
    """The launcher waits for a data set that the host's data agent fetches.

    At most every ten seconds, and once with `state` "ready". `bytes` of `total` are there (0: the
    size is not known yet), `rate` is in bytes per second, `peers` are the hosts that send.
    """

    NAME = "fetch"
    data_set: str
    version: int
    state: str
    bytes: int = 0
    total: int = 0
    rate: int = 0
    peers: int = 0


class Member(Event):
    """A worker has its rank in the world; the launcher prints it for each worker, every minute.

    Workers of scripts are included. `gpus` are those of the container, `restarts` counts how often
    torchrun has restarted the workers. `failure` has the host and the message of the failure for
    which a script's workers were restarted, until they have run for longer than before it.
    """

    NAME = "member"
    rank: int
    local_rank: int
    world_size: int
    restarts: int = 0
    gpus: tuple[str, ...] = ()
    failure: str = ""


class Restart(Event):
    """The launcher reports that a host's workers were restarted; `restarts` counts from 1.

    `reason` is the exception that ended a worker, in a separate event.
    """

    NAME = "restart"
    restarts: int
    reason: str = ""


class Begin(Event):
    """Rank 0 reports that the training begins; `steps` are the job's steps at this world size."""

    NAME = "begin"
    epochs: int
    steps: int
    world_size: int


class Resumed(Event):
    """The training resumes from a checkpoint of `epoch` whole epochs and `step` steps."""

    NAME = "resumed"
    epoch: int
    step: int
    checkpoint: str


class Regrouped(Event):
    """The training continues in another group of processes, without a checkpoint; from rank 0.

    `epoch` counts whole epochs, `steps` are the job's at the new world size. No step was taken for
    `seconds`. `reason` says which host was lost, ended or joined.
    """

    NAME = "regrouped"
    epoch: int
    step: int
    steps: int
    world_size: int
    seconds: float
    hosts: tuple[str, ...] = ()
    reason: str = ""


class Progress(Event):
    """The progress of the training, from rank 0: at most every second, every ten in long runs.

    `epoch` counts whole epochs, `step` optimizer steps. `loss` is the mean cross entropy of the
    epoch so far, in nats; null if it is not finite. `accuracy` and `checkpoint` are the newest
    known. `seconds_left` follows from the speed since the training began or resumed.

    The user's own model may have no accuracy, and another loss: `metrics` are the newest means
    over the test samples by name, the `loss` among them. For a text they are the `loss` in nats a
    token, `perplexity` (e to its power) and `bits_per_byte`. `top5_accuracy` is the share of the
    test images whose class is among the five most probable ones; null with five classes or fewer.

    For a text, `tokens_per_second` counts the tokens of the samples in `images_per_second`. `mfu`
    is the share of the GPUs' peak that the model's own operations use (arXiv 2204.02311, appendix
    B); null where the peak is not known.
    """

    NAME = "progress"
    epoch: int
    epochs: int
    step: int
    steps: int
    world_size: int
    loss: float | None = None
    accuracy: float | None = None
    images_per_second: float | None = None
    seconds_left: float | None = None
    checkpoint: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    top5_accuracy: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None


class Epoch(Progress):
    """An epoch is complete and evaluated; if a checkpoint was due, its writing has begun.

    `exchange_share` is the share of the ranks' time in exposed communication (not overlapped with
    compute).
    `class_accuracy` and `class_samples` have the accuracy and the number of the test images of the
    20 classes of the lowest accuracy, by name.
    """

    NAME = "epoch"
    exchange_share: float | None = None
    class_accuracy: dict[str, float] = field(default_factory=dict)
    class_samples: dict[str, int] = field(default_factory=dict)


class Pace(Event):
    """The mean time of a rank's newest steps, from each rank: at most every 10 s.

    In seconds: the whole step, and of it data, compute, and exposed communication (not overlapped
    with compute).
    """

    NAME = "pace"
    rank: int
    local_rank: int
    step: int
    step_seconds: float
    data_seconds: float
    compute_seconds: float
    exchange_seconds: float


class Saved(Event):
    """A checkpoint is on the disk of rank 0's host."""

    NAME = "saved"
    checkpoint: str
    epoch: int
    step: int


class Kept(Event):
    """A host has made a version of the files of `checkpoint: {files: …}`, which a script wrote.

    `version` is its name for people, `bytes` the size of all `files`.
    """

    NAME = "kept"
    version: str
    host: str
    bytes: int = 0
    files: tuple[str, ...] = ()


class Hung(Event):
    """A worker hangs. The others continue without its host until it runs again or is killed.

    `seconds` have passed since it was asked to leave the group.
    """

    NAME = "hung"
    local_rank: int
    seconds: float


class Alone(Event):
    """The processes of a host are in no group with others of the script, `seconds` after its start.

    With several hosts, these are processes of other hosts. Repeated every minute until they are.
    """

    NAME = "alone"
    seconds: float


class Grouped(Event):
    """The processes of a host that were alone have formed a group."""

    NAME = "grouped"
    seconds: float


class Silent(Event):
    """A rank of a script has done nothing for `seconds`; repeated every minute until it does.

    It has printed no line, its host has made no version of its files, and its CPU and its GPU were
    idle.
    """

    NAME = "silent"
    rank: int
    seconds: float


class Spoke(Event):
    """A silent rank is active again."""

    NAME = "spoke"
    rank: int


class Unmoved(Event):
    """The last `steps` have not changed the weights; repeated every 100 steps.

    Their losses or gradients were not finite. 0: the weights change again. `scale` is that of the
    loss with fp16, else 0.
    """

    NAME = "unmoved"
    steps: int
    scale: float = 0.0


class Untaught(Event):
    """The training learns nothing, or its model is no better than one answer for all samples.

    After each such epoch, if the job continues, and at the end.
    """

    NAME = "untaught"
    message: str


class Stopped(Event):
    """The ranks have agreed to stop, and have saved."""

    NAME = "stopped"
    epoch: int
    step: int
    checkpoint: str | None = None


class Failed(Event):
    """A rank, a launcher or a server ends because of a failure; `message` is one line.

    `host` is the host that has failed, "" if it is the one that reports this. A launcher reports
    each failure of a script, also if it is restarted.
    """

    NAME = "failed"
    kind: FailureClass
    message: str
    rank: int | None = None
    exit_code: int | None = None
    host: str = ""


class Ended(Event):
    """The launcher ends without a failure, by itself (0) or by a signal (128 + its number)."""

    NAME = "ended"
    exit_code: int


class LeftOut(Event):
    """A host takes no part in its training until a person releases it; repeated every minute."""

    NAME = "left_out"
    kind: FailureClass
    message: str


class Released(Event):
    """A person has released a host that was left out."""

    NAME = "released"


class Serving(Event):
    """A server answers with a checkpoint, and repeats it; `source` is where it was read."""

    NAME = "serving"
    checkpoint: str
    replicas: int
    source: str = ""
