"""A user's own script that forms no group, or one of a single process, until $FOLDER/go is there.

Its only argument is `loads` or `alone`. It ends when $FOLDER/end is there.
"""

import os
import sys
import time
from pathlib import Path

from torch import distributed, ones

FOLDER = Path(os.environ["FOLDER"])


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.05)


def main() -> None:
    if sys.argv[1] == "alone":
        own = f"file://{FOLDER}/group-{os.getpid()}"
        distributed.init_process_group("gloo", init_method=own, rank=0, world_size=1)
    wait_for("go")
    if sys.argv[1] == "alone":
        distributed.destroy_process_group()
    distributed.init_process_group("gloo")
    distributed.all_reduce(ones(1))
    wait_for("end")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
