"""A run: the objects and settings of one training."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.checkpoints.format import Progress
from trainer.checkpoints.saver import Saver
from trainer.contract.batch import accumulation, global_batch
from trainer.contract.job import TrainJob
from trainer.core.announce import Announcer, Live
from trainer.core.compute import Compiled, Learning, Lookahead, MovingAverage, Norms
from trainer.core.meter import Meter
from trainer.core.task import Task
from trainer.core.watch import Balance, Watch
from trainer.data import shards
from trainer.data.samples import DataSet
from trainer.parallel.ranks import Ranks
from trainer.parallel.world import World
from trainer.record.recorder import Recorder


class Stop:
    """Whether this process must end after the present step, because of a SIGTERM.

    torchrun sends SIGTERM to its workers when it ends, and before it restarts them because a host
    joined or left; after 30 s it kills them (--shutdown-timeout).
    """

    requested = False
    """Whether this process must leave its group."""
    goes_on = False
    """Whether it then joins the next group."""

    def saves(self, world: World) -> bool:  # noqa: ARG002
        """Whether to save before it leaves; all ranks must call it."""
        return True

    def listen(self) -> None:
        """Install the signal handler."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "requested", True))


@dataclass
class Reached:
    """The last step of this process; it is kept from group to group."""

    progress: Progress | None = None
    generation: int = 0  # The group that has agreed on the state before it.
    time: float = 0.0  # Of time.monotonic(), at the end of the step, its test and its checkpoint.


@dataclass(frozen=True)
class Run:
    """A training: its job, its rank in the world, and its objects."""

    job: TrainJob
    world: World
    data: DataSet
    ranks: Ranks  # How the ranks train the model together.
    module: nn.Module  # The model, or what torch.compile made of it.
    parameters: int  # Of the whole model.
    reached: Reached
    compiled: Compiled | None  # Set if the job uses torch.compile.
    task: Task
    optimizer: torch.optim.Optimizer
    rate: Callable[[float], float]  # The learning rate after a share of the training.
    average: Lookahead | MovingAverage | None  # Of the weights, if the job has one.
    precision: str  # fp32, bf16 or fp16.
    scaler: Any  # torch's GradScaler; disabled unless the precision is fp16.
    checkpoints: Path  # This host's folder.
    started: float  # time.monotonic() at the start of the process, or at the end of the last group.
    saver: Saver
    watch: Watch
    balance: Balance
    live: Live
    meter: Meter
    announcer: Announcer
    recorder: Recorder
    norms: Norms  # Of the newest gradients.
    learning: Learning  # By the losses of the epochs.

    @property
    def model(self) -> nn.Module:
        """The model, without wrappers."""
        return self.ranks.model

    @property
    def tested(self) -> nn.Module:
        """The tested and served model: the moving average or, without one, the model."""
        return self.average.average if isinstance(self.average, MovingAverage) else self.model

    def pieces(self, batch: Tensor) -> list[Tensor]:
        """This rank's micro-batches of the global batch int64 [n]."""
        grouped = self.data.train.grouped(batch)
        rank, shares = self.ranks.data_rank, self.balance.shares
        return shards.pieces(grouped, rank, shares, self.micro_steps)

    @property
    def micro_steps(self) -> int:
        """The largest number of micro-batches of a rank in a step."""
        return accumulation(self.job.train, self.ranks.data_size)

    @property
    def global_batch(self) -> int:
        """Samples of a full optimizer step, over all ranks."""
        return global_batch(self.job.train, self.ranks.data_size)

    @property
    def age(self) -> float:
        """Seconds since `started`."""
        return time.monotonic() - self.started

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and the average of its weights if the job has one."""
        return [self.model, self.average] if self.average else [self.model]

    @property
    def steppers(self) -> dict[str, Any]:
        """The objects that change the weights; their state depends on this rank's gradients."""
        return {"optimizer": self.optimizer, "scaler": self.scaler}

    def parts(self) -> dict[str, Any]:
        """Return by name the objects whose state is in a checkpoint and equal on all ranks."""
        if self.job.parallel.used:
            return {"scaler": self.scaler}
        parts = self.ranks.parts() | ({"average": self.average} if self.average else {})
        return parts if self.ranks.optimizers_differ else parts | self.steppers
