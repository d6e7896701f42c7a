"""The built-in training, which writes down what each rank does with which samples.

A line of $WITNESS/HOST-PID.jsonl: ["takes" or "has", generation, epoch, position, time, world
size, samples]. A rank takes samples before the exchange of their gradients, and has the step after
its update. The position is that before the step. $PACE are seconds that each step takes longer, as
if a GPU computed.
"""

import json
import os
import sys
import time
from pathlib import Path

from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import train as entry
from trainer.checkpoints.format import Progress
from trainer.core import epoch, step
from trainer.core.run import Run, Stop
from trainer.data import shards
from trainer.data.augment import Augmentation

FILE = Path(os.environ["WITNESS"], f"{os.environ['KIT_HOST']}-{os.getpid()}.jsonl")
PACE = float(os.environ.get("PACE", "0"))
TAKE_STEP, UPDATE = step.train_step, step.update


def write(what: str, run: Run, progress: Progress, samples: list[int]) -> None:
    with FILE.open("a") as stream:
        line = [what, run.world.generation, progress.epoch, progress.position]
        stream.write(json.dumps([*line, time.time(), run.world.size, samples]) + "\n")


def take_step(
    run: Run, progress: Progress, left: Tensor, augmentation: Augmentation | None, stop: Stop
) -> step.StepResult:
    own = run.pieces(shards.next_batch(left, run.global_batch))
    write("takes", run, progress, [int(sample) for piece in own for sample in piece])
    time.sleep(PACE)
    return TAKE_STEP(run, progress, left, augmentation, stop)


def update(run: Run, progress: Progress) -> bool:
    taken = UPDATE(run, progress)
    write("has", run, progress, [])
    return taken


epoch.train_step = take_step  # type: ignore[attr-defined]
step.update = update
if __name__ == "__main__":
    sys.exit(record(entry.main)())
