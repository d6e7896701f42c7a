"""Trains each job in the same processes, with a step of rank 1 that is bad or is not taken.

    skips.py [FAULT:JOB:MASTER_PORT]…

FAULT: `loss` is not finite, the `gradient` is not finite, or the step is `left` out: the rank, or
all that exchange gradients with it, take the samples as done without computing anything.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer import train as training
from trainer.checkpoints.format import Progress
from trainer.contract.job import Train
from trainer.core import epoch, setup
from trainer.core.run import Run, Stop
from trainer.core.step import StepResult, end_local, train_step
from trainer.data.load import load_data
from trainer.data.samples import DataSet, Samples
from trainer.data.shards import next_batch

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # It keeps the keys of earlier groups.
BAD_STEP = 14
"""Of 24 in an epoch: PowerSGD has a state, and a round of local steps has begun."""
SAMPLES = 192
FAULT, BAD = [""], [False]


class Bad(nn.Module):
    """A small model, as CPUs are slow with 16 bits, with a fault while BAD."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        if BAD[0] and FAULT[0] == "loss":
            images = images * torch.nan
        scores: Tensor = self.model(self.norm(images))
        if BAD[0] and FAULT[0] == "gradient":
            scores.register_hook(overflow)  # type: ignore[no-untyped-call]
        return scores


def overflow(gradient: Tensor) -> Tensor:
    return gradient * torch.inf


def build(*_: object) -> nn.Module:
    return Bad()


def load(train: Train, root: Path) -> DataSet:
    """The first digits."""
    data = load_data(train, root)
    return replace(data, train=few(data.train), test=few(data.test))


def few(samples: Samples) -> Samples:
    return replace(samples, inputs=samples.inputs[:SAMPLES], labels=samples.labels[:SAMPLES])


def leave_out(run: Run, progress: Progress, left: Tensor, stop: Stop) -> StepResult:
    """Take the samples as done."""
    batch, number = next_batch(left, run.global_batch), progress.step + 1
    after = Progress(progress.epoch, progress.position + len(batch), number)
    run.reached.progress = after
    nothing = torch.zeros(())
    if run.ranks.begin_local(number, 0):
        last = len(batch) == len(left)
        return StepResult(after, nothing, *end_local(run, stop, number, "left out", last=last))
    return StepResult(after, nothing, bad_losses=("left out",))


def step(run: Run, progress: Progress, left: Tensor, more: Any, stop: Stop) -> StepResult:
    due = progress.step + 1 == BAD_STEP
    local = run.job.exchange.mode != "every_step"
    BAD[0] = due and os.environ["RANK"] == "1"
    if FAULT[0] == "left" and due and (BAD[0] or not local):
        return leave_out(run, progress, left, stop)
    return train_step(run, progress, left, more, stop)


training.load_data = load  # type: ignore[attr-defined]
setup.build_model = build  # type: ignore[attr-defined, assignment]
epoch.train_step = step  # type: ignore[assignment, attr-defined]
if __name__ == "__main__":
    for argument in sys.argv[1:]:
        FAULT[0], name, port = argument.split(":")
        folder = Path(name).with_suffix("")
        os.environ |= {"KIT_JOB": name, "KIT_CHECKPOINTS": str(folder), "MASTER_PORT": port}
        print(f"begins {folder.name}", flush=True)
        if code := training.main():
            sys.exit(code)
