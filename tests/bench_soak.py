"""How much of the time a training trains while many faults of all kinds are made at random.

    python -m tests.bench_soak [--faults 100] [--mean 15] [--seed 1]

Three hosts of one process each train digits over gloo on this machine, with steps of 0.1 s. Faults
follow each other after exponentially distributed times, also while an earlier one lasts; one host
is always left alone, as one of them is enough for the job. What lasts is undone after 2 to 10 s, as
an engine starts a container again: nobody does anything else. The effective training time is the
share of the time in which a step follows the one before within three times the usual time; what a
gap has more is lost. In the end all hosts train together, and the last state has counted each
sample of every epoch once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.trainer.hosts import hosts, stop, write_job
from tests.trainer.test_elastic_faults import NAMES, Cluster
from trainer.contract.events import Begin, Regrouped

LASTS = 2.0, 10.0
"""Seconds after which a fault is undone."""
PACE = "0.1"
"""Seconds of a step in which a GPU would compute: two cores have no time for three hosts."""
USUAL = 3.0
"""Times the median step: a longer gap is a pause."""
Undo = Callable[[], None]


def kill_worker(cluster: Cluster, name: str) -> Undo:
    os.kill(cluster.worker(name), signal.SIGKILL)
    return lambda: None


def stop_worker(cluster: Cluster, name: str) -> Undo:
    return stop([cluster.worker(name)])


def lose_host(cluster: Cluster, name: str) -> Undo:
    cluster.hosts[name].end()
    return lambda: cluster.start(name)


def silence_host(cluster: Cluster, name: str) -> Undo:
    return stop(cluster.pids(name))


def lose_coordinator(cluster: Cluster, _: str) -> Undo:
    assert cluster.coordinator
    cluster.coordinator.end()

    def undo() -> None:
        cluster.coordinator = cluster.local.serve(cluster.endpoint, cluster.nnodes)

    return undo


FAULTS: dict[str, Callable[[Cluster, str], Undo]] = {
    "a worker is killed": kill_worker,
    "a worker is stopped": stop_worker,
    "a host is lost": lose_host,
    "a host is silent": silence_host,
    "the coordinator is lost": lose_coordinator,
}


@dataclass
class Soak:
    """A training, and the faults that last."""

    cluster: Cluster
    draw: random.Random
    lasting: dict[str, tuple[float, Undo]] = field(default_factory=dict)
    """By host, or "" for the coordinator: when it is undone, and how."""
    made: Counter[str] = field(default_factory=Counter)

    def fault(self) -> bool:
        """Make a fault; False if there is no host for it at the moment."""
        what = self.draw.choice(list(FAULTS))
        make = FAULTS[what]
        free = [name for name in NAMES if name not in self.lasting]
        if make is lose_coordinator:
            chosen = "" if "" not in self.lasting else None
        else:
            chosen = self.draw.choice(free) if len(free) > 1 else None
        if chosen is None:
            return False
        try:
            undo = make(self.cluster, chosen)
        except (ValueError, ProcessLookupError):  # Its process is being started just now.
            return False
        self.lasting[chosen] = (time.time() + self.draw.uniform(*LASTS), undo)
        self.made[what] += 1
        return True

    def undo(self, *, everything: bool = False) -> None:
        """Undo what has lasted long enough."""
        for name, (until, undo) in list(self.lasting.items()):
            if everything or time.time() > until:
                undo()
                del self.lasting[name]

    def run(self, count: int, mean: float) -> None:
        """Make so many faults."""
        coming = time.time() + self.draw.expovariate(1 / mean)
        while self.made.total() < count:
            time.sleep(0.05)
            self.undo()
            if time.time() > coming and self.fault():
                coming = time.time() + self.draw.expovariate(1 / mean)
                if self.made.total() % 10 == 0:
                    print(f"{self.made.total()} faults", flush=True)
        self.undo(everything=True)


def whole(cluster: Cluster) -> None:
    """Wait until all hosts train together and an epoch has ended."""
    deadline = time.monotonic() + 120
    while cluster.begins()[-1].world_size != len(NAMES):
        assert time.monotonic() < deadline, "not all hosts train together again"
        time.sleep(0.5)
    cluster.wait_for_epoch()


def gaps(cluster: Cluster, began: float, ended: float) -> list[float]:
    """The seconds between a step of the training and the next one."""
    taken: dict[tuple[int, int, int], float] = {}
    for what, generation, epoch, position, at, _, _ in cluster.lines():
        if what == "has":
            step = generation, epoch, position
            taken[step] = min(at, taken.get(step, at))
    inside = [began, *sorted(at for at in taken.values() if began < at < ended), ended]
    return [after - before for before, after in pairwise(inside)]


def report(soak: Soak, seconds: float, found: list[float]) -> None:
    """Print the figures."""
    cluster, usual = soak.cluster, statistics.median(found)
    pauses = sorted(gap for gap in found if gap > USUAL * usual)
    lost = sum(pauses) - usual * len(pauses)
    groups = sum(type(each) in (Begin, Regrouped) for each in cluster.begins())
    count = soak.made.total()
    for what, number in soak.made.most_common():
        print(f"  {what:<30}{number:>5}")
    print(f"  {count} faults in {seconds:.0f} s: one each {seconds / count:.1f} s")
    print(f"  groups {groups}, steps {cluster.check_samples()}, each sample of an epoch once")
    middle, worst = statistics.median(pauses), pauses[-1]
    print(f"  pauses {len(pauses)}, median {middle:.2f} s, worst {worst:.2f} s")
    print(f"  effective training time {1 - lost / seconds:.1%}")


def main() -> None:
    """Make the faults and print what they cost."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--mean", type=float, default=15.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), cold=True) as local:
        train: dict[str, Any] = {"epochs": 10**6, "batch_size": 16, "learning_rate": 0.005}
        job = write_job(Path(folder), every_epochs=20, max_restarts=1000, **train)
        cluster = Cluster(local, job, pace=PACE)
        cluster.start(*NAMES)
        cluster.wait_for(len(NAMES), 0)
        soak, began = Soak(cluster, random.Random(chosen.seed)), time.time()
        soak.run(chosen.faults, chosen.mean)
        ended = time.time()
        whole(cluster)
        cluster.end()
        report(soak, ended - began, gaps(cluster, began, ended))


if __name__ == "__main__":
    main()
