"""Benchmarks in a separate lab: kit's share of a deploy, the cost of the overlay, a split.

    python -m tests.lab.bench deploy [ROUNDS]    to the first epoch's end, by kit and by hand
    python -m tests.lab.bench network [RATE]     all-reduce over the overlay and the hosts' network;
                                                 RATE limits the links, for example 1gbit
    python -m tests.lab.bench split              a GPU from training to inference, and back

The nodes share this machine's clock, so that the times of their lines can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from kit.hosts.docker import Docker
from kit.runtime.status import LogLine
from kit.targets.swarm.logs import Logs
from kit.targets.swarm.observe import observe_cluster
from tests.lab import settings
from tests.lab.client import Client, ready
from tests.lab.conftest import Lab, wait_for
from tests.lab.settings import IMAGE

LAB = {
    "KIT_LAB_NAME": "bench",
    "KIT_LAB_NET": "10.76.0",
    "KIT_LAB_NODES": "2",
    "KIT_LAB_PYTHON": sys.executable,
}
DIGITS = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 2, batch_size: 32, learning_rate: 0.05}}
"""
LONG = (
    DIGITS.replace("epochs: 2", "epochs: 9999")
    + """\
checkpoint: {every_epochs: 5}
environment: {OMP_NUM_THREADS: "1"}
"""
)
SERVER = f"""\
image: {IMAGE}
job: digits
environment: {{OMP_NUM_THREADS: "1"}}
"""
SUMS = f"""\
image: {IMAGE}
command: [allreduce.py, "25", "100"]
working_dir: /workspace
mounts:
  - {{bind: /srv/bench, to: /workspace}}
"""
EPOCH = re.compile(r" *\d+/\d+ +\d+ +\S+ +\S+ +(\d+) ")
"""The line of an epoch's end, with its images/s."""
SETTLE = 20
"""Seconds of training before and after a split."""
PHASES = (
    ("container", r"launch \S+: job "),
    ("data checked", r"launch \S+: ready to run"),
    ("coordinator", r"launch \S+: coordinator \S+ answers"),
    ("PyTorch, all ranks", r"job \S+: cnn of"),
    ("first epoch", r" +1/2 "),
)
"""The end of each phase: the last host's line with this text."""


class Bench:
    """A project in a lab."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.env = {**os.environ, **lab.environment("n1")}
        del self.env["DOCKER_HOST"]

    def kit(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "kit", *arguments]
        subprocess.run(command, cwd=self.folder, env=self.env, check=True, capture_output=True)

    def docker(self, *arguments: str) -> None:
        command = ["docker", "-H", "ssh://root@n1", *arguments]
        subprocess.run(command, cwd=self.folder, env=self.env, check=True, capture_output=True)

    def write(self, name: str, job: str, driver: str = "overlay") -> None:
        inventory = self.lab.do("inventory").replace("speed:", f"driver: {driver}, speed:")
        (self.folder / "jobs").mkdir(exist_ok=True)
        for old in (self.folder / "jobs").iterdir():
            old.unlink()
        (self.folder / "jobs" / f"{name}.yaml").write_text(job)
        (self.folder / "inventory.yaml").write_text(inventory)
        self.kit("render")
        self.kit("swarm", "up", "--yes")

    def lines(self, job: str, end: str) -> list[LogLine]:
        """Return the job's lines as soon as one of them matches `end`."""
        os.environ["PATH"] = self.env["PATH"]
        while True:
            docker = Docker("n1", "ssh://root@n1")
            found = list(Logs(docker, observe_cluster(docker)).read([job], None))
            docker.close()
            if any(re.match(end, line.text) for line in found):
                return found
            time.sleep(1)

    def away(self, stack: str) -> None:
        """Remove a stack and its checkpoints, and wait until nothing is left."""
        self.docker("stack", "rm", stack)
        job = stack.removeprefix("train-")
        for node in ("n1", "n2"):
            while self.lab.docker(node, "ps", "--all", "--quiet", "--filter", f"name={stack}"):
                time.sleep(0.5)
            self.lab.ssh(node, f"docker volume rm kit-{self.lab.settings.name}_{job}-checkpoints")


def phases(lines: list[LogLine], began: float) -> dict[str, float]:
    """Return the seconds that each phase took, on the host where it ended last."""
    found, before = {}, began
    for name, pattern in PHASES:
        ended = max(line.time or 0 for line in lines if re.match(pattern, line.text))
        found[name], before = ended - before, ended
    return found


def deploy(bench: Bench, rounds: int) -> None:
    """Deploy the same file in turns by kit and by hand; print medians, phases and the ratio."""
    bench.write("digits", DIGITS)
    tree = bench.folder / "compose" / "bench"
    stack = ["stack", "deploy", "--detach=true", "-c", str(tree / "train-digits.stack.yaml")]
    ways = {
        "by hand": partial(bench.docker, *stack, "train-digits"),
        "kit": partial(bench.kit, "deploy"),
    }
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, start in ways.items():
            began = time.time()
            start()
            measured = phases(bench.lines("digits", PHASES[-1][1]), began)
            bench.away("train-digits")
            if number:  # The first round warms the caches.
                taken[way].append(measured)
                print(f"{way:8} {sum(measured.values()):6.2f} s", flush=True)
    print(f"\n{'phase':20}" + "".join(f"{way:>10}" for way in ways))
    for name, _ in PHASES:
        cells = (statistics.median(each[name] for each in taken[way]) for way in ways)
        print(f"{name:20}" + "".join(f"{seconds:8.2f} s" for seconds in cells))
    totals = {way: statistics.median(sum(each.values()) for each in taken[way]) for way in ways}
    print(f"{'to the first epoch':20}" + "".join(f"{totals[way]:8.2f} s" for way in ways))
    print(f"kit / by hand: {totals['kit'] / totals['by hand']:.2f}")


def network(bench: Bench, rate: str) -> None:
    """Sum over the overlay and over the hosts' own network; print medians and the ratio."""
    for node in ("n1", "n2"):
        bench.lab.do("shape", node, rate)
    script = Path(__file__).with_name("allreduce.py").read_text(encoding="utf-8")
    for node in ("n1", "n2"):
        bench.lab.ssh(
            node, f"mkdir -p /srv/bench && cat >/srv/bench/allreduce.py <<'END'\n{script}\nEND"
        )
    found: dict[str, dict[int, float]] = {}
    for driver in ("overlay", "host"):
        bench.write("sums", SUMS, driver)
        bench.kit("deploy")
        lines = bench.lines("sums", "allreduce 100 ")
        bench.away("train-sums")
        words = [line.text.split() for line in lines if line.text.startswith("allreduce ")]
        found[driver] = {int(size): float(seconds) for _, size, seconds in words}
    for size in (25, 100):
        over, plain = found["overlay"][size], found["host"][size]
        print(
            f"all-reduce of {size:3} MiB, 3 ranks on 2 hosts: overlay {over * 1e3:.0f} ms, "
            f"host network {plain * 1e3:.0f} ms, ratio {over / plain:.3f}"
        )


def split(bench: Bench) -> None:
    """Give n2's second GPU to a server, then n1's to another, and all back; time each."""
    (bench.folder / "serve").mkdir()
    (bench.folder / "serve" / "digits.yaml").write_text(SERVER)
    bench.write("digits", LONG)
    bench.kit("deploy")
    urls = [f"http://{bench.lab.settings.address(node)}:8080" for node in ("n1", "n2")]
    time.sleep(SETTLE)
    for what, moves, serving in (
        ("n2:1 to inference", ("--infer", "n2:1"), urls[1:]),
        ("n1:0 to inference", ("--infer", "n1:0"), urls[:1]),
        ("all to training", ("--infer", "0"), []),
    ):
        # Read before: the lines of a removed service are lost.
        before = bench.lines("digits", EPOCH.pattern)
        client = Client(urls[1]) if what.startswith("n1") else contextlib.nullcontext()
        with client:
            began = time.time()
            bench.kit("split", *moves, "--yes")
            bench.kit("render")
            bench.kit("deploy")
            deployed = time.time()
            for url in serving:
                wait_for(partial(ready, url), url)
            answers = time.time()
            time.sleep(SETTLE)
        rates, pause = around(before, bench.lines("digits", EPOCH.pattern), began)
        print(
            f"{what}: kit split, render and deploy {deployed - began:.1f} s"
            + (f", the server answers after {answers - began:.1f} s" if serving else "")
            + f"; training stood still for {pause:.1f} s, images/s {rates[0]:,.0f} before, "
            f"{rates[1]:,.0f} after"
        )
        if isinstance(client, Client):
            print(f"n2's server meanwhile: {client.answered} answers, {len(client.failed)} failed")
    bench.kit("stop", "--all")


def around(before: list[LogLine], after: list[LogLine], moment: float) -> tuple[list[float], float]:
    """Return images/s before and after a moment, and the seconds without an epoch's end there."""
    lines = {(line.time or 0, line.text) for line in [*before, *after]}
    ends = [(at, found) for at, text in sorted(lines) if (found := EPOCH.match(text))]
    pause, at = max((later - at, at) for (at, _), (later, _) in pairwise(ends) if later > moment)
    sides = [
        [float(found[1]) for when, found in ends if at - SETTLE < when <= at],
        [float(found[1]) for when, found in ends if when >= at + pause],
    ]
    return [statistics.median(side[1:]) for side in sides], pause


@contextmanager
def bench_lab() -> Iterator[Bench]:
    """Start the lab of the benchmarks, and remove it at the end."""
    lab = Lab(settings.load({**os.environ, **LAB}), LAB)
    try:
        lab.do("up")
        lab.do("image")
        with tempfile.TemporaryDirectory() as folder:
            yield Bench(lab, Path(folder))
    finally:
        lab.do("down")


def main() -> None:
    """Run the benchmark of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench", usage=__doc__)
    benchmarks = parser.add_subparsers(dest="what", required=True)
    benchmarks.add_parser("deploy").add_argument("rounds", nargs="?", type=int, default=3)
    benchmarks.add_parser("network").add_argument("rate", nargs="?", default="off")
    benchmarks.add_parser("split")
    chosen = parser.parse_args()
    with bench_lab() as bench:
        if chosen.what == "split":
            split(bench)
        elif chosen.what == "network":
            network(bench, chosen.rate)
        else:
            deploy(bench, chosen.rounds)


if __name__ == "__main__":
    main()
