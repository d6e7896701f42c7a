"""Measures the time of each kind of work, finds slow ranks, and divides the batch by their speed.

It also attributes all wall time of a rank to the states of contract/metrics.py, and counts
a text's tokens per second. The model FLOPs utilisation (MFU) is that of Chowdhery et al.
2022 (PaLM, arXiv 2204.02311, appendix B): the operations that the model needs, without those of
activation checkpointing, divided by the peak of all GPUs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict

import torch

from trainer.contract.gpt import gpt_of
from trainer.contract.gpus import sheet_of
from trainer.contract.job import Train
from trainer.contract.metrics import STATES
from trainer.data.samples import DataSet
from trainer.parallel.world import World

KINDS = ("data", "compute", "communication")
CHANCE = 0.1  # Smaller differences, in seconds, may be chance in an epoch of a few steps.
SLOW = 1.3
"""A rank is slow if its own work (data and compute) takes this many times the others' median."""
FIRST, LONGEST = 4, 256
"""Steps of the first measurement, which is discarded as it fills caches and loads kernels, and of
the longest ones. Before, each measurement has twice as many as the previous one."""
LEAST = 0.1
"""The least share of a rank, relative to an even one, so that a paused rank is measured again."""


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
        """Exclude the time until the next mark."""
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
    # The total is 0 if the ranks resume at the end of an epoch.
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
        """`parts` is the number of parts of each batch: one for each rank if `auto`."""
        self.shares = [1 / parts] * parts
        self._world, self._watch, self._auto = world, watch, auto
        self._window, self._steps, self._samples, self._work = FIRST, 0, 0, 0.0

    def note(self, samples: int) -> None:
        """Count a step; at intervals, update the shares. All ranks must call it at equal steps."""
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


STATE_OF = {"data": "data", "compute": "useful", "communication": "exchange"}


class Goodput:
    """The seconds of each state since the launcher started.

    `seconds` are those of this worker's earlier processes. `launched` and `started` are the times,
    since 1970, at which the launcher and this process started. The time between them that `seconds`
    do not cover is idle: the worker had no process.
    """

    def __init__(
        self, watch: Watch, seconds: Mapping[str, float], launched: float, started: float
    ) -> None:
        self.seconds = {state: float(seconds.get(state, 0.0)) for state in STATES}
        before = max(0.0, started - launched - sum(self.seconds.values()))
        self.seconds["idle"] += before
        self._watch, self._work = watch, watch.read()
        self._until = time.monotonic() - max(0.0, time.time() - started)

    def count(self, state: str) -> float:
        """Count the time since the last call as `state`; return it in seconds."""
        now = time.monotonic()
        spent, self._until = now - self._until, now
        self.seconds[state] += spent
        return spent

    def count_steps(self, *, lost: bool) -> None:
        """Count the time since the last call as steps: by the watch's kinds, or as `lost`.

        A failure loses the steps since the last checkpoint. They are known only afterwards, and a
        counter cannot decrease: so the repeated steps are counted as lost.
        The watch measures a GPU's time, which lags behind the host's: only its shares are used.
        """
        before, self._work = self._work, self._watch.read()
        work = {STATE_OF[kind]: self._work[kind] - before[kind] for kind in self._work}
        total = sum(work.values())
        if lost or not total:
            self.count("lost" if lost else "useful")
            return
        now = time.monotonic()
        spent, self._until = now - self._until, now
        for state, part in work.items():
            self.seconds[state] += spent * part / total


class SpeedFigures(TypedDict):
    """Fields of events and of metrics.jsonl."""

    tokens_per_second: float | None
    mfu: float | None


@dataclass(frozen=True)
class Speed:
    """Converts samples per second to other figures for a text."""

    tokens: int = 0  # Per sample; 0 for images.
    operations: float = 0.0  # FLOPs for a token; 0 if the model is not known.
    peak: float = 0.0  # FLOPs a second of all ranks' GPUs; 0 if one is not known.

    @property
    def unit(self) -> str:
        """The unit of `count`, for people."""
        return "tokens/s" if self.tokens else "images/s"

    def count(self, samples: float) -> float:
        """Convert samples per second to `unit`."""
        return samples * (self.tokens or 1)

    def figures(self, samples: float | None) -> SpeedFigures:
        """Return the figures for a number of samples per second."""
        if not samples or not self.tokens:
            return {"tokens_per_second": None, "mfu": None}
        tokens = samples * self.tokens
        known = self.peak and self.operations
        mfu = tokens * self.operations / self.peak if known else None
        return {"tokens_per_second": tokens, "mfu": mfu}


def speed_of(world: World, train: Train, data: DataSet, precision: str) -> Speed:
    """Return the converter for a run's speed; all ranks must call it."""
    peaks = world.gather(own_peak(world.device, precision))
    if not data.text:
        return Speed()
    operations = 0.0
    if train.model == "gpt":
        operations = gpt_of(train.options).operations(data.classes, train.context)
    return Speed(train.context, operations, sum(peaks) if all(peaks) else 0.0)


def own_peak(device: torch.device, precision: str) -> float:
    """Return the peak operations per second of this rank's GPU; 0 on a CPU or if unknown.

    The table is for tensor cores in half precision. A MIG instance has the name of its card, but
    only a part of its cores.
    """
    if device.type != "cuda" or precision == "fp32":
        return 0.0
    name = torch.cuda.get_device_name(device)
    sheet = None if "MIG" in name else sheet_of(name)
    return sheet.operations if sheet else 0.0
