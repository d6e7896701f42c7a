"""How long a script of several hosts takes no step when a worker or a host is lost.

    python -m tests.bench_scripts [--turns 5] [--ways kit torchrun] [--faults worker host silent]

Three hosts of one process each exchange a number over gloo on this machine, at least one host is
needed. Each turn starts them anew, makes a fault, and takes the time to the first step of the
script that was started again on a host that stays. `torchrun` is `python -m torch.distributed.run`
with the default settings; its store is in the first host, which stays. Prints p50 and the worst, in
seconds; a turn without a step within `LIMIT` counts as that.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, Task, descendants, hosts, wait_until

STEPS = ROOT / "tests" / "trainer" / "steps.py"
NAMES = ("n1", "n2", "n3")
LIMIT = 60.0
"""Seconds."""


class Cluster:
    """Three hosts that run the script."""

    def __init__(self, local: Hosts, way: str) -> None:
        self.folder = local.folder
        endpoint = local.rendezvous(script=True) if way == "kit" else f"127.0.0.1:{free_port()}"
        self.hosts: dict[str, Task] = {}
        for name in NAMES:
            self.hosts[name] = self._start(local, name, way, endpoint)
            if way != "kit":
                time.sleep(1.5)  # The first has the store.
        wait_until(lambda: self.first_step(0.0, 3) is not None, "steps of all")
        time.sleep(2)

    def _start(self, local: Hosts, name: str, way: str, endpoint: str) -> Task:
        if way == "kit":
            job = local.folder / "own.json"
            job.write_text(json.dumps({"name": "own", "command": [str(STEPS)]}))
            return local.agent(name, job, endpoint, 1, "1:3", STEPS=local.folder)
        argv = ["-m", "torch.distributed.run", "--nnodes", "1:3", "--nproc-per-node", "1"]
        argv += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "own"]
        argv += ["--max-restarts", "3", str(STEPS)]
        environ: dict[str, str | Path] = {
            "KIT_HOST": name,
            "STEPS": self.folder,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        return local.start(name, argv, environ)

    def first_step(self, since: float, size: int | None = None) -> float | None:
        """The time of the first step of a script that was started after `since`, if any."""
        found = []
        for name in ("n1", "n2"):
            for file in self.folder.glob(f"{name}-*.jsonl"):
                line = file.read_text().partition("\n")[0]
                if line:
                    at, world, _ = json.loads(line)
                    if at > since and size in (None, world):
                        found.append(at)
        return min(found, default=None)

    def break_it(self, fault: str) -> float:
        """Make a fault; return its time. `Hosts` ends processes that were stopped."""
        name = "n2" if fault == "worker" else "n3"
        first = self.hosts[name].process.pid
        pids = [first, *descendants(first)]
        if fault == "worker":
            pids = [max(self.hosts[name].workers("steps.py"))]
        began = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP if fault == "silent" else signal.SIGKILL)
        return began


def turn(way: str, fault: str) -> float:
    """Return the time from a fault to the first step after it, at most LIMIT."""
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder), cold=True) as local:
        cluster = Cluster(local, way)
        began = cluster.break_it(fault)
        while time.time() - began < LIMIT:
            if first := cluster.first_step(began):
                return first - began
            time.sleep(0.1)
        return LIMIT


def main() -> None:
    """Print the times of each fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=["kit", "torchrun"])
    parser.add_argument("--faults", nargs="+", default=["worker", "host", "silent"])
    chosen = parser.parse_args()
    print(f"{'fault':10}{'way':10}{'turns':>6}{'p50':>8}{'worst':>8}")
    for fault in chosen.faults:
        for way in chosen.ways:
            found = [turn(way, fault) for _ in range(chosen.turns)]
            p50, worst = statistics.median(found), max(found)
            print(f"{fault:10}{way:10}{len(found):6}{p50:8.2f}{worst:8.2f}", flush=True)


if __name__ == "__main__":
    main()
