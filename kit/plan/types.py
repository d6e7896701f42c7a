"""The parts of a plan as values: placements, volumes, and the figures of a step."""

from __future__ import annotations

from dataclasses import dataclass

from kit.model import Gpu, Host


@dataclass(frozen=True, slots=True)
class Placement:
    """A host's part in a job or a server.

    The `ranks` in the plan follow the order of the inventory: `first_rank` to
    `first_rank + processes - 1`. `whole`: `gpus` are all GPUs of the host. `interface` is used on
    the host's network; several have commas. `one_process`: one uses all GPUs, as in TensorFlow.
    A `spare` trains only while another host of the job is lost; its ranks follow those of the
    others. A `queued` one trains while the queue gives the job GPUs of the host, at most these.
    """

    host: Host
    first_rank: int
    gpus: tuple[Gpu, ...]
    whole: bool
    interface: str | None
    one_process: bool = False
    spare: bool = False
    queued: bool = False

    @property
    def processes(self) -> int:
        """Return the number of processes: one for each GPU, or one for all."""
        return 1 if self.one_process else len(self.gpus)

    @property
    def by_index(self) -> bool:
        """Return whether all GPUs are known by index only, so that similar hosts are equal."""
        return not any(gpu.known for gpu in self.gpus)

    @property
    def pinned(self) -> bool:
        """Return whether the GPUs are listed: the host may have more than the inventory names."""
        return not (self.whole and self.by_index)


@dataclass(frozen=True, slots=True)
class Volume:
    """A named volume: `key` in the file, `name` in Docker. It is NFS if `nfs_address` is set.

    `owned`: kit created it and may delete it. All others belong to the user.
    """

    key: str
    name: str
    nfs_address: str | None
    nfs_path: str | None
    owned: bool


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount in every container of a job. `kind` is `bind` or `volume`.

    `propagation` is that of a bind mount, or "" for Docker's default.
    """

    kind: str
    source: str
    target: str
    read_only: bool
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples per optimizer step; None if a command does not give its batch size."""

    per_gpu: int | None
    accumulation: int
    total: int | None
    reference: int | None
    learning_rate: float | None
    suggested_learning_rate: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The data that one synchronous step sends over the slowest host's link.

    `seconds` is None if there is one host only or the model's size is unknown.
    """

    parameters: int | None
    gradient_bytes: int | None
    slowest_host: str | None
    speed: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """An estimate of the bytes that a rank needs on its GPU.

    `gathered` are whole layers of a sharded model while they compute. `activations` are kept for
    the backward pass; None if the trainer does not know the model's layers.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int | None
    context: int

    @property
    def total(self) -> int:
        """All of them."""
        known = self.parameters + self.gradients + self.optimizer + self.gathered + self.context
        return known + (self.activations or 0)


@dataclass(frozen=True, slots=True)
class Division:
    """How ranks divide a model: `sizes` of data, pipeline, shard and tensor.

    `within_hosts` are the dimensions whose groups of ranks are on one host each. `memory` is of the
    rank that needs the most, None if the model's size is unknown. `room` is
    the least memory that a GPU has for it, None if it is not known.
    """

    sizes: dict[str, int]
    within_hosts: tuple[str, ...]
    memory: Memory | None
    room: int | None


@dataclass(frozen=True, slots=True)
class ExchangeWay:
    """One exchange mode and its cost.

    One exchange every `every_steps` steps moves `exchange_bytes` (before the ring's share) in
    `exchange_seconds`. `step_seconds` is the time added to each step; with `overlap` it is only the
    part that compute does not hide. `compute_share` is the share of a step's time left for
    computing. `speed_up` compares all hosts with the host that has the most GPUs.
    """

    mode: str
    every_steps: int
    compression: str
    overlap: bool
    exchange_bytes: int
    exchange_seconds: float
    step_seconds: float
    compute_share: float
    speed_up: float

    @property
    def break_even(self) -> float:
        """Return the computing seconds per step below which exchange takes more than half of it."""
        return self.exchange_seconds / self.every_steps / (2 if self.overlap else 1)


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """The effect of the exchange between hosts on a job, if it does not overlap with computing.

    `compute_seconds` per step come from the job or are `assumed`. `chosen` is the job's own mode
    (None: only the trainer knows its size). `ways` are the alternatives. `advice` is the suggested
    mode (None: no change is needed, or none is better). `largest_host` has the most GPUs of the
    job; alone it needs `alone_seconds` for the samples of one step of all hosts.
    """

    compute_seconds: float
    assumed: bool
    chosen: ExchangeWay | None
    ways: tuple[ExchangeWay, ...]
    advice: ExchangeWay | None
    largest_host: str
    alone_seconds: float


@dataclass(frozen=True, slots=True)
class Precision:
    """The type that `precision: auto` selects for a job, and the oldest GPU, which decides it."""

    type: str
    gpu: str
    host: str
