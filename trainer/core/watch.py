"""Measures the time of each kind of work and the slow ranks; divides the batch by their speed."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from trainer.parallel.world import World

KINDS = ("data", "compute", "communication")
CHANCE = 0.1  # Smaller differences, in seconds, may be chance in an epoch of a few steps.
SLOW = 1.3
"""A rank is slow if its own work (data and compute) takes this many times the others' median."""
FIRST, LONGEST = 4, 256
"""Steps of the first measurement, which is discarded as it fills caches and loads kernels. Each
next one has twice as many, up to the longest."""
LEAST = 0.1
"""The least part of an even share: a rank that paused for a moment must be measured again."""


class Watch:
    """Measures the time of this rank's device by `KINDS`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []
        self._spent = dict.fromkeys(KINDS, 0.0)

    def mark(self, kind: str) -> None:
        """Count the time since the last mark as `kind`; on a GPU, by an event in its queue."""
        now: Any = time.monotonic()
        if self._cuda:
            now = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            now.record()
        self._marks.append((kind, now))

    def pause(self) -> None:
        """Do not count the time until the next mark."""
        self.read()
        self._marks = []

    def read(self) -> dict[str, float]:
        """Seconds of each kind since the beginning; waits until the device is idle."""
        if self._cuda and self._marks:
            self._marks[-1][1].synchronize()
        for (_, began), (kind, ended) in pairwise(self._marks):
            self._spent[kind] += began.elapsed_time(ended) / 1000 if self._cuda else ended - began
        self._marks = self._marks[-1:]
        return dict(self._spent)


def compare_ranks(
    world: World, before: dict[str, float], after: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Compare the ranks' times between two readings of their watches; all ranks must call it.

    Return the share of each of `KINDS` in the time of all ranks (sum 1), and the slow ranks by
    name, with the ratio of their time to that of the others.
    """
    own = {kind: after[kind] - before[kind] for kind in KINDS}
    found = world.gather(own)
    # Nothing was spent if the ranks resume at the end of an epoch.
    total = sum(sum(spent.values()) for spent in found) or 1.0
    work = [spent["data"] + spent["compute"] for spent in found]
    slow = {}
    for rank, name in enumerate(world.names):
        usual = statistics.median([*work[:rank], *work[rank + 1 :]] or work)
        if work[rank] > SLOW * usual and work[rank] - usual > CHANCE:
            slow[name] = round(work[rank] / usual, 2)
    return {kind: sum(spent[kind] for spent in found) / total for kind in KINDS}, slow


class Balance:
    """The ranks' `shares` of every global batch (sum 1): even, or by their measured speed.

    A step is as fast as its slowest rank. Apart from rounding, the mean loss and its gradient do
    not depend on the division of the batch.
    """

    def __init__(self, world: World, watch: Watch, parts: int, *, auto: bool) -> None:
        """`parts` are those into which each batch is divided: one for each rank if `auto`."""
        self.shares = [1 / parts] * parts
        self._world, self._watch, self._auto = world, watch, auto
        self._window, self._steps, self._samples, self._work = FIRST, 0, 0, 0.0

    def note(self, samples: int) -> None:
        """Count a step; after some, divide again. All ranks must call it after the same step."""
        if not self._auto:
            return
        self._steps, self._samples = self._steps + 1, self._samples + samples
        if self._steps < self._window:
            return
        spent = self._watch.read()
        before, self._work = self._work, spent["data"] + spent["compute"]
        speeds = self._world.gather(self._samples / max(self._work - before, 1e-9))
        if self._window > FIRST:
            even = sum(speeds) / len(speeds)
            speeds = [max(speed, LEAST * even) for speed in speeds]
            self.shares = [speed / sum(speeds) for speed in speeds]
        self._window, self._steps, self._samples = min(2 * self._window, LONGEST), 0, 0
