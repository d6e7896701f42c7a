"""How long the ranks that stay take no step when a worker or a host is lost or returns.

    python -m tests.bench_faults [--turns 30] [--faults worker host …]

Three hosts of one process each train digits over gloo on this machine; each fault is made `turns`
times, and undone before the next. The pause is the longest time between two steps of a rank that
stays, from the fault on. Prints p50, p95 and the worst, in seconds. tests/bench_scripts.py does the
same with a script, and with torchrun alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.trainer.hosts import ROOT, Hosts, Task, descendants, hosts, stop, wait_until, write_job

WITNESS = ROOT / "tests" / "trainer" / "witness.py"
NAMES = ("n1", "n2", "n3")
QUIET = 2.0
"""Seconds of steps between two measurements."""


class Cluster:
    """Three hosts that train."""

    def __init__(self, local: Hosts) -> None:
        self.local = local
        # With larger steps, a single host may diverge, which ends all.
        train: dict[str, Any] = {"epochs": 10**6, "batch_size": 16, "learning_rate": 0.005}
        self.job = write_job(local.folder, every_epochs=200, **train)
        self.witness = local.folder / "witness"
        self.witness.mkdir()
        self.endpoint = local.rendezvous("1:3")
        self.hosts = {name: self.start(name) for name in NAMES}
        self.wait_for(3, time.time())

    def start(self, name: str) -> Task:
        """Start a host."""
        return self.local.agent(
            name, self.job, self.endpoint, 1, program=[WITNESS], WITNESS=self.witness
        )

    def worker(self, name: str) -> int:
        """The newest process that trains on a host."""
        return max(self.hosts[name].workers("witness.py"))

    def pids(self, name: str) -> list[int]:
        """The agent and its workers."""
        process = self.hosts[name].process.pid
        return [process, *descendants(process)]

    def steps(self, names: tuple[str, ...] = NAMES) -> list[tuple[float, int]]:
        """The time and the world size of each step of some hosts, in order."""
        found = []
        for name in names:
            for file in self.witness.glob(f"{name}-*.jsonl"):
                for line in file.read_text().splitlines(keepends=True)[-5000:]:
                    if line.endswith("\n") and line.startswith('["has"'):
                        _, _, _, _, at, size, _ = json.loads(line)
                        found.append((at, size))
        return sorted(found)

    def wait_for(self, size: int, since: float) -> None:
        """Wait until a world of so many processes takes steps, for a while."""

        def there() -> bool:
            time.sleep(0.2)
            known = self.steps()
            first = next((at for at, each in known if each == size and at > since), None)
            return first is not None and known[-1][0] > first + QUIET

        wait_until(there, f"steps of {size} ranks")

    def pause(self, since: float, stays: tuple[str, ...]) -> float:
        """The longest time without a step of a rank that stays."""
        longest = 0.0
        for name in stays:
            times = [at for at, _ in self.steps((name,))]
            times = [at for at in times if at > since - 1]
            longest = max(longest, max(after - before for before, after in pairwise(times)))
        return longest


def kill_worker(cluster: Cluster, name: str) -> Callable[[], None]:
    """Kill a worker; its agent starts it anew."""
    os.kill(cluster.worker(name), signal.SIGKILL)
    return lambda: None


def lose_host(cluster: Cluster, name: str) -> Callable[[], None]:
    """Kill all processes of a host; its connections are closed."""
    cluster.hosts[name].end()

    def undo() -> None:
        cluster.hosts[name] = cluster.start(name)

    return undo


def silence_host(cluster: Cluster, name: str) -> Callable[[], None]:
    """Stop all processes of a host: its connections stay open."""
    return stop(cluster.pids(name))


def stop_worker(cluster: Cluster, name: str) -> Callable[[], None]:
    """Stop a worker, whose agent goes on."""
    return stop([cluster.worker(name)])


FAULTS = {
    "worker": (kill_worker, "n2", "a worker is killed"),
    "host": (lose_host, "n3", "a host is lost"),
    "first": (lose_host, "n1", "the host of rank 0 is lost"),
    "stopped": (stop_worker, "n2", "a worker is stopped (SIGSTOP)"),
    "silent": (silence_host, "n3", "a host is silent"),
}


def measure(cluster: Cluster, fault: str, turns: int) -> tuple[list[float], list[float]]:
    """Return the pauses of the fault and of the return."""
    make, name, _ = FAULTS[fault]
    stays = tuple(other for other in NAMES if other != name)
    lost, back = [], []
    for _ in range(turns):
        began = time.time()
        undo = make(cluster, name)
        cluster.wait_for(2, began)
        again = time.time()
        lost.append(cluster.pause(began, stays))
        undo()
        cluster.wait_for(3, again)
        if fault != "worker":  # Its return begins by itself.
            back.append(cluster.pause(again, stays))
    return lost, back


def row(what: str, pauses: list[float]) -> str:
    """A line of the table."""
    some = pauses if len(pauses) > 1 else pauses * 2
    points = statistics.quantiles(some, n=20, method="inclusive")
    p50, p95 = statistics.median(pauses), points[-1]
    return f"{what:36}{len(pauses):6}{p50:8.2f}{p95:8.2f}{max(pauses):8.2f}"


@contextmanager
def running() -> Iterator[Cluster]:
    """A cluster in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), cold=True) as local:
        yield Cluster(local)


def main() -> None:
    """Print the pauses of each fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    chosen = parser.parse_args()
    print(f"{'pause, seconds':36}{'turns':>6}{'p50':>8}{'p95':>8}{'worst':>8}")
    for fault in chosen.faults:
        with running() as cluster:
            lost, back = measure(cluster, fault, chosen.turns)
            what = FAULTS[fault][2]
            print(row(what, lost), flush=True)
            if back:
                print(row("  and is back", back), flush=True)


if __name__ == "__main__":
    main()
