"""Jobs of a GPU cluster over time: read from a published trace, or drawn like one.

The distributions are those of Microsoft's Philly cluster: Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019. Its section 2.3 describes
the trace, figure 2 has the run times for 1, 2 to 4, 5 to 8 and more GPUs. The numbers below were
measured on the published trace (github.com/msr-fiddle/philly-traces) in the form of one line a job
that the artifact of Pollux (OSDI 2021, github.com/petuum/adaptdl) has as `philly.csv`.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random

SIZES = {1: 0.932, 2: 0.022, 4: 0.023, 8: 0.020, 16: 0.0024, 32: 0.0008}
"""The share of the jobs by their number of GPUs."""
RUN_TIMES = {
    1: (6.7, 2.0),
    2: (6.9, 3.8),
    4: (6.9, 3.8),
    8: (9.7, 2.8),
    16: (8.9, 3.2),
    32: (8.9, 3.2),
}
"""Mean and deviation of the logarithm of the seconds, by the number of GPUs."""
SHORTEST, LONGEST = 60.0, 12 * 3600.0
"""Run times are cut to these: a schedule of a day does not show jobs of two weeks."""
PEOPLE = 12
ELASTIC = 0.5
"""The share of the jobs with several GPUs that run on half as many to twice as many."""
DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job that needs `seconds` on so many GPUs. `elastic`: it may get fewer or more, anywhere."""

    name: str
    owner: str
    arrived: float
    gpus: int
    seconds: float
    elastic: bool = False

    @property
    def work(self) -> float:
        """Return its GPU-seconds."""
        return self.gpus * self.seconds


def drawn(jobs: int, gpus: int, load: float, seed: int) -> list[TraceJob]:
    """Draw jobs for a cluster whose GPUs they would use by `load` until the last one arrives."""
    random = Random(seed)
    sizes = {size: share for size, share in SIZES.items() if size <= gpus // 4}
    found = []
    for number in range(jobs):
        size = random.choices([*sizes], [*sizes.values()])[0]
        seconds = min(LONGEST, max(SHORTEST, random.lognormvariate(*RUN_TIMES[size])))
        owner = f"p{random.choices(range(PEOPLE), [1 / (1 + each) for each in range(PEOPLE)])[0]}"
        elastic = size > 1 and random.random() < ELASTIC
        found.append(TraceJob(f"j{number:05}", owner, 0.0, size, round(seconds), elastic))
    end = sum(job.work for job in found) / gpus / load
    times = sorted(_by_day(random, end) for _ in found)
    return [replace(job, arrived=round(when)) for job, when in zip(found, times, strict=True)]


def _by_day(random: Random, end: float) -> float:
    """Draw a time until the end; by day it is up to three times as likely as at night."""
    while True:
        when = random.uniform(0, end)
        if random.random() * 1.5 < 1 - 0.5 * math.cos(2 * math.pi * when / DAY):
            return when


def read(path: Path, jobs: int, gpus: int, load: float, seed: int) -> list[TraceJob]:
    """Take jobs of a published trace by chance; their times of arrival come closer by one factor.

    Its columns are `timestamp`, `duration`, `num_gpus` and `cluster` (of virtual clusters, which
    stand for people).
    """
    random = Random(seed)
    with path.open() as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["num_gpus"]) in SIZES]
    some = random.sample([row for row in rows if int(row["num_gpus"]) <= gpus // 4], jobs)
    some.sort(key=lambda row: row["timestamp"])
    first = datetime.fromisoformat(some[0]["timestamp"])
    found = []
    for number, row in enumerate(some):
        size = int(row["num_gpus"])
        seconds = min(LONGEST, max(SHORTEST, float(row["duration"])))
        after = (datetime.fromisoformat(row["timestamp"]) - first).total_seconds()
        elastic = size > 1 and random.random() < ELASTIC
        found.append(TraceJob(f"j{number:05}", row["cluster"], after, size, seconds, elastic))
    factor = sum(job.work for job in found) / gpus / load / found[-1].arrived
    return [replace(job, arrived=round(job.arrived * factor)) for job in found]
