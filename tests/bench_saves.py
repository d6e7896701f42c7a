"""Kills a process at random points of its saves: the newest complete checkpoint must always load.

    python -m tests.bench_saves --kills 1000 --seed 1

Each process goes on from the checkpoint that the one before has left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch

from trainer.checkpoints.format import NONE, Progress, Saved, newest, pack, write
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob

JOB = TrainJob(
    "saves",
    Train(dataset="digits", model="cnn", epochs=1, batch_size=8),
    Exchange(),
    Checkpoint(keep=2),
    Metrics(),
)
VALUES = 250_000
"""Of the state, 4 bytes each."""
SAVES = 4
"""A process is killed before it has had the time for so many."""


class LostError(Exception):
    """A checkpoint that was complete is gone, or differs."""


@dataclass
class Found:
    """What the kills have shown."""

    kills: int = 0
    saved: int = 0
    interrupted: int = 0  # Kills that left a half-written folder.
    seconds: list[float] = field(default_factory=list)  # Of a save.


def save_for_ever(folder: Path, step: int, told: int) -> NoReturn:
    """Save one step after the other, and tell the number of each that is on the disk."""
    while True:
        step += 1
        write(folder, saved_state(step), JOB, keep=2)
        os.write(told, f"{step}\n".encode())


def saved_state(step: int) -> Saved:
    """A checkpoint whose values are its step."""
    progress = Progress(0, 0, step)
    state = {"values": torch.full((VALUES,), float(step)), "progress": vars(progress)}
    return pack(state | {"rng": [{"cpu": torch.get_rng_state()}]}, progress, JOB, 1)


def check(folder: Path, least: int) -> int:
    """Load the newest checkpoint, of at least a step; return its step. Raises LostError."""
    saved = newest(folder, JOB, warn=lambda _: None)
    step = saved.step if saved else NONE
    if step < least:
        raise LostError(f"step {least} was on the disk; the newest that loads is {step}")
    if saved and not torch.equal(saved.load()["values"], torch.full((VALUES,), float(step))):
        raise LostError(f"step {step} does not have its values")
    return step


def kill_saves(folder: Path, kills: int, draw: random.Random) -> Found:
    """Kill so many processes in the middle of their saves. Raises LostError."""
    torch.set_num_threads(1)  # A forked process has none of the others.
    found, step, mean = Found(), 0, 0.02
    for _ in range(kills):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            save_for_ever(folder, step, writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            first = int(told.readline())  # From here on, its saves are of the usual length.
            began = time.monotonic()
            time.sleep(draw.uniform(0, SAVES * mean))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            seconds = time.monotonic() - began
            later = [int(line) for line in told.read().split("\n")[:-1]]
        if later:
            found.seconds.append(seconds / len(later))
            mean = sum(found.seconds) / len(found.seconds)
        step = check(folder, later[-1] if later else first)
        found.kills, found.saved = found.kills + 1, found.saved + 1 + len(later)
        found.interrupted += any(not each.name.startswith("step-") for each in folder.iterdir())
    return found


def main() -> None:
    """Kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = kill_saves(Path(name), options.kills, random.Random(options.seed))
    print(
        f"{found.kills} kills, {found.interrupted} of them left a half-written checkpoint; "
        f"{found.saved} were saved, and the newest complete one always loaded"
    )


if __name__ == "__main__":
    main()
