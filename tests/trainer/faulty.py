"""The built-in training, with the fault FAULT on rank 1 from FAULT_AT on."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import train as entry
from trainer.contract.job import Train, TrainJob
from trainer.core import epoch, session, setup, state, watch
from trainer.core.models import build_model
from trainer.core.run import Run
from trainer.data.samples import DataSet
from trainer.parallel.halt import HaltError
from trainer.parallel.world import World

FAULT, AT = os.environ["FAULT"], int(os.environ.get("FAULT_AT", "0"))
WORLD = int(os.environ.get("FAULT_WORLD", "1"))
"""Ranks that train before the fault occurs: who joins takes the state of another, and a fault of
parameters before would be gone with it."""
SECONDS = float(os.environ.get("FAULT_SECONDS", "0.001"))
"""Seconds for a sample, on a rank with simulated work."""
SIMULATED = "FAULT_SIMULATED" in os.environ
"""Whether these seconds pass only on the clock by which the training measures its work."""


def unlucky() -> bool:
    """Whether this is the rank with the fault; it is known once there is a group."""
    rank, wanted = os.environ.get("RANK"), os.environ.get("FAULT_RANK", "1")
    if rank is None or wanted not in {rank, "any"}:
        return False
    return WORLD == 1 or distributed.get_world_size() >= WORLD


def first_time() -> bool:
    """Whether the fault shall occur: once only, if there is a file FAULT_ONCE to note it."""
    if not (file := os.environ.get("FAULT_ONCE")):
        return True
    try:
        Path(file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def take_long() -> None:
    """Sleep, or compute for SECONDS."""
    if FAULT != "busy":
        time.sleep(0.6 if FAULT == "slow" else 600)
    elif first_time():
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            torch.ones(100, 100).matmul(torch.ones(100, 100))
        print("has computed for long", flush=True)


class SimulatedTime:
    """In place of the module `time`: only samples take time, however busy the machine is.

    As with real work, an exchange ends on all ranks when the last one has come.
    """

    def __init__(self) -> None:
        self.time = time.time
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def work(self, seconds: float) -> None:
        self._now += seconds

    def meet(self) -> None:
        if distributed.is_initialized():
            now = torch.tensor(self._now, dtype=torch.float64)
            distributed.all_reduce(now, distributed.ReduceOp.MAX)
            self._now = now.item()


CLOCK = SimulatedTime()
work = CLOCK.work if SIMULATED else time.sleep
MARK = watch.Watch.mark


def mark(own: watch.Watch, kind: str) -> None:
    """Note the end of a kind of work, of which only an exchange waits for the other ranks."""
    if kind == "communication":
        CLOCK.meet()
    MARK(own, kind)


class Faulty(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # Its figures depend on how the samples are divided between the ranks.
        self.norm = nn.Identity() if FAULT == "half" else nn.BatchNorm2d(1)
        self.calls = -1  # Rehearsals are not counted: one alone, and one in the first group.

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training and "RANK" in os.environ
        due = unlucky() and self.training and self.calls >= AT
        if due and FAULT in {"slow", "hung", "busy"}:
            take_long()
        if due and FAULT == "half":
            # Like a GPU of half the speed: a time for each sample.
            work(SECONDS * len(images))
        if self.training and FAULT == "half":
            work(SECONDS * len(images))
        if due and FAULT == "silent":
            os.kill(os.getpid(), signal.SIGSTOP)
        if due and FAULT == "memory":
            raise torch.cuda.OutOfMemoryError("pretended")
        if due and FAULT == "mistake":
            raise ValueError("a mistake in the model")
        if due and FAULT == "perturbed" and first_time():
            # DDP averages only gradients: a change on one rank remains.
            self.model[-1].bias.data[3] += 0.001  # type: ignore[index]
        if due and FAULT == "nan" and self.calls == AT:
            images = images * torch.nan
        scores: Tensor = self.model(self.norm(images))
        if due and FAULT == "flip" and first_time():
            scores = scores * 1e6  # As after a flipped bit of an exponent: once, on this rank.
        return scores


def build(train: Train, data: DataSet) -> nn.Module:
    return Faulty(build_model(train, data))


def resume(run: Run) -> state.Resumed:
    resumed = state.resume(run)
    if FAULT == "unlike" and unlucky():
        next(run.model.parameters()).data[-1] += 0.001
    return resumed


GOES_BACK = entry.goes_back


def goes_back(job: TrainJob, world: World, error: HaltError) -> bool:
    """On the host FAULT_MISSES, the group ends before it is known why."""
    if world.host == os.environ.get("FAULT_MISSES"):
        raise RuntimeError("gloo/transport: connection closed by peer") from None
    return GOES_BACK(job, world, error)


if SIMULATED:
    watch.time = epoch.time = CLOCK  # type: ignore[assignment, attr-defined]
    watch.Watch.mark = mark  # type: ignore[assignment, method-assign]
entry.goes_back = goes_back
setup.build_model = build  # type: ignore[attr-defined]
session.resume = resume  # type: ignore[attr-defined]
if __name__ == "__main__":
    sys.exit(record(entry.main)())
