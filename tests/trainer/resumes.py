"""Trains each job without and with interruptions, in the same processes.

    resumes.py [JOB:MASTER_PORT…]…

Each argument is one training: the job file, and the steps before which it must stop, with a port
for each group: JOB:PORT:STEP:PORT:STEP:…:PORT. The model has a BatchNorm, whose buffers differ
between ranks. The two hosts are folders, so that torch is imported only once.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from torch import nn

from trainer.contract.job import Train
from trainer.core import epoch, setup
from trainer.core.models import build_model
from trainer.core.step import StepResult, train_step
from trainer.data.samples import DataSet
from trainer.train import main

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # It keeps the keys of earlier groups.
STOP: list[int] = []
PLACES = (
    (("pc1", "0"), ("pc2", "0"), ("pc2", "1")),
    (("pc2", "0"), ("pc2", "1"), ("pc1", "0")),
)
"""Host and local rank of each rank: every start moves ranks to other hosts."""


def build(train: Train, data: DataSet) -> nn.Module:
    """The job's model behind a BatchNorm."""
    return nn.Sequential(nn.BatchNorm2d(1), build_model(train, data))


def step(run: Any, progress: Any, *more: Any) -> StepResult:
    """A step; one rank alone is told to stop."""
    if STOP and progress.step + 1 >= STOP[0] and os.environ["RANK"] == "1":
        STOP.clear()
        signal.raise_signal(signal.SIGTERM)
    return train_step(run, progress, *more)


setup.build_model = build  # type: ignore[attr-defined]
epoch.train_step = step  # type: ignore[assignment, attr-defined]
if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, *numbers = argument.split(":")
        os.environ["KIT_JOB"] = name
        starts = zip(numbers[::2], [*numbers[1::2], "0"], strict=True)
        for number, (port, stop) in enumerate(starts):
            host, local_rank = PLACES[number % 2][int(os.environ["RANK"])]
            os.environ |= {"KIT_HOST": host, "LOCAL_RANK": local_rank, "MASTER_PORT": port}
            os.environ["KIT_CHECKPOINTS"] = str(Path(name).with_suffix("") / host)
            STOP[:] = [int(stop)] if int(stop) else []
            print(f"begins {Path(name).stem}, to {stop}", flush=True)
            code = main()
            if code and not int(stop):
                sys.exit(code)
