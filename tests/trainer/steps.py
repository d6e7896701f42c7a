"""A user's own script that exchanges something in each step, and writes down when.

A line of $STEPS/HOST-PID.jsonl: [time, world size, step]. With the file $STEPS/busy it computes for
long in a step, with $STEPS/few it takes few steps.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import distributed

FOLDER, HOST = Path(os.environ["STEPS"]), os.environ["KIT_HOST"]


def main() -> None:
    distributed.init_process_group("gloo")
    size, found = distributed.get_world_size(), torch.ones(1)
    with (FOLDER / f"{HOST}-{os.getpid()}.jsonl").open("w") as stream:
        for step in range(100 if (FOLDER / "few").exists() else 1_000_000):
            distributed.all_reduce(found)
            stream.write(json.dumps([time.time(), size, step]) + "\n")
            stream.flush()
            if (FOLDER / "busy").exists():
                time.sleep(2.5)
            time.sleep(0.02)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
