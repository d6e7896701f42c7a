"""Lets a training rest, and writes down its steps: for tests that watch it.

LAB_PACE: seconds to rest after every step of the optimizer. Jobs that train until the test has seen
enough would keep all cores busy, and everything else of the tests waiting.

LAB_WITNESS: a folder, in which each process writes a line for each step that it has taken.

In the lab, PyTorch calls this itself, as an extension that says so (entry_points.txt). Elsewhere,
tests/warm does.
"""

import json
import os
import sys
import time
from pathlib import Path


def begin() -> None:
    seconds, folder = float(os.environ.get("LAB_PACE", "0")), os.environ.get("LAB_WITNESS")
    if not (seconds or folder):
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if folder:
        # A process of its own number space may have the number of an earlier one.
        file = Path(folder, f"{os.environ.get('KIT_HOST')}-{time.time_ns():x}.jsonl")
        register_optimizer_step_post_hook(lambda *_: write_step(file))
    if seconds:
        register_optimizer_step_post_hook(lambda *_: time.sleep(seconds))


def write_step(file: Path) -> None:
    """Write down the step of the trainer that has called the optimizer.

    The trainer has no place for an observer, and the one in the image must be the real one:
    therefore its variables are read.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "train_step":
        if frame.f_back is None:
            return
        frame = frame.f_back
    run, progress = frame.f_locals["run"], frame.f_locals["progress"]
    line = {
        "time": time.monotonic(),  # The same on all nodes of a machine, whatever their clocks show.
        "generation": run.world.generation,
        "rank": run.world.rank,
        "size": run.world.size,
        "epoch": progress.epoch,
        "position": progress.position,
        "step": frame.f_locals["number"],
        "batch": frame.f_locals["batch"].tolist(),
        "own": [int(sample) for piece in frame.f_locals["own"] for sample in piece],
    }
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
