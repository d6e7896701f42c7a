"""The parts of a plan as values: the hosts' shares, disks, and the numbers of a step."""

from __future__ import annotations

from dataclasses import dataclass

from kit.model import Gpu, Host


@dataclass(frozen=True, slots=True)
class Placement:
    """A host's part in a job or a server.

    `ranks` of torchrun are given in the order of the inventory: `first_rank` up to
    `first_rank + processes - 1`. `whole`: `gpus` are all that the host has. `interface` matters on
    the host's network.
    """

    host: Host
    first_rank: int
    gpus: tuple[Gpu, ...]
    whole: bool
    interface: str | None

    @property
    def processes(self) -> int:
        """One process per GPU."""
        return len(self.gpus)

    @property
    def by_index(self) -> bool:
        """Whether the GPUs are known by their index alone, so that equal hosts are alike."""
        return not any(gpu.known for gpu in self.gpus)

    @property
    def pinned(self) -> bool:
        """Whether the GPUs are listed one by one: a host may have more than the inventory says."""
        return not (self.whole and self.by_index)


@dataclass(frozen=True, slots=True)
class Volume:
    """A named volume: `key` in the file, `name` in Docker; NFS where `nfs_address` is given.

    `owned`: kit named it, and may delete it. Any other is the user's.
    """

    key: str
    name: str
    nfs_address: str | None
    nfs_path: str | None
    owned: bool


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A mount of every container of a job. `kind` is `bind` or `volume`."""

    kind: str
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples per optimizer step; None where a command keeps its batch size to itself."""

    per_gpu: int | None
    accumulation: int
    total: int | None
    reference: int | None
    learning_rate: float | None
    suggested_learning_rate: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one synchronous step moves over the slowest host's link.

    `seconds` is None where no link is involved (one host) or the model's size is not known.
    """

    parameters: int | None
    gradient_bytes: int | None
    slowest_host: str | None
    speed: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ExchangeWay:
    """One way to exchange, and what it costs.

    One exchange every `every_steps` steps moves `exchange_bytes` (before the ring's share) in
    `exchange_seconds`; that is `step_seconds` a step, of which with `overlap` only what outlasts
    the next steps counts. `compute_share` is the part of a step's time
    that is left for computing, `speed_up` how much faster the hosts are together than the one
    with the most GPUs alone.
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
        """Seconds of computing a step below which more than half of the time is exchange."""
        return self.exchange_seconds / self.every_steps / (2 if self.overlap else 1)


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """What the exchange between hosts makes of a job, if nothing of it overlaps with computing.

    `compute_seconds` a step are the job's word, or `assumed`. `chosen` is the way that the job has
    (None: its size is known to the trainer alone), `ways` what there is instead, `advice` the one
    to write (None: there is no need, or nothing better). `largest_host` has the most GPUs of the
    job, and alone needs `alone_seconds` for the samples of one step of all.
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
    """The type that `precision: auto` means for a job, and the oldest GPU that decides it."""

    type: str
    gpu: str
    host: str
