"""The share of time for computation on slow links, by exchange mode.

    python -m tests.bench_links [--hosts 2 3 4] [--speed 1gbit] [--step 0.06]

Each host is a network namespace of this machine with its own link, shaped by tc's token bucket
filter. It runs the trainer with the parameters of a ResNet-18; only the computation is simulated,
by a sleep for the rest of each step's time, as this machine has too few cores. Other work of the
CPU would not slow a GPU, so the figures are rather low. Needs root, ip and tc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, hosts, metrics, write_job

WAYS: dict[str, dict[str, Any]] = {
    "plain DDP": {},
    "fp16 hook": {"compression": "fp16"},
    "PowerSGD": {"compression": "powersgd"},
    "local SGD 16": {"mode": "local_sgd", "every_steps": 16},
    **{
        f"local SGD {steps} fp16 overlapped": {
            "mode": "local_sgd",
            "every_steps": steps,
            "overlap": True,
            "compression": "fp16",
        }
        for steps in (16, 32)
    },
    "DiLoCo 128 fp16": {"mode": "diloco", "every_steps": 128, "compression": "fp16"},
}
"""The exchange modes, without warm-up steps."""
SHORT, LONG = 20, 256
"""Steps of an epoch with an exchange at every step, and of one with local steps."""


def run(*words: str) -> None:
    """Run a command of the network's tools."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def network(count: int, speed: str) -> Iterator[list[str]]:
    """Network namespaces of hosts, each link shaped in both directions; removed afterwards.

    The bridge between them is also in a namespace: firewall rules of this machine, such as
    Docker's, do not affect it.
    """
    mark = f"kit{os.getpid()}"
    switch, names = f"{mark}-switch", [f"{mark}-{number}" for number in range(count)]
    shape = ("root", "tbf", "rate", speed, "burst", "256kb", "latency", "100ms")
    try:
        for name in (switch, *names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", switch, "link", "add", "bridge", "up", "type", "bridge")
        for number, name in enumerate(names):
            port = f"port{number}"
            run(
                *("ip", "-n", switch, "link", "add", port, "master", "bridge", "up"),
                *("type", "veth", "peer", "eth0", "netns", name),
            )
            run("ip", "-n", name, "addr", "add", f"10.91.0.{number + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("tc", "-n", switch, "qdisc", "add", "dev", port, *shape)
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(("ip", "netns", "delete", name), check=False)


def rate(
    local: Hosts, names: list[str], way: dict[str, Any], steps: int, step: float, *, apart: bool
) -> float:
    """Train on all hosts, as one job or as concurrent separate jobs; return samples per second."""
    folder = Path(tempfile.mkdtemp(dir=local.folder))
    at_once = {"warm_up_steps": 0} if "mode" in way or way.get("compression") == "powersgd" else {}
    way = {**way, **at_once, "epochs": 2, "every_epochs": 2}
    job = write_job(folder, model="resnet18", dataset="cifar10", batch_size=1, **way)
    port, before = free_port(), len(local.tasks)
    for number, name in enumerate(names):
        own = folder / name
        own.mkdir()
        place: tuple[str, ...] = ("--nnodes", "1" if apart else str(len(names)))
        place += ("--node-rank", "0" if apart else str(number))
        place += ("--master-addr", "127.0.0.1" if apart else "10.91.0.1")
        place += ("--master-port", str(port), "--nproc-per-node", "1")
        local.start(
            name,
            ("-m", "torch.distributed.run", *place, "-m", "tests.trainer.pretended"),
            {
                "PYTHONPATH": ROOT,
                "KIT_JOB": job,
                "KIT_CHECKPOINTS": own,
                "GLOO_SOCKET_IFNAME": "lo" if apart else "eth0",
                "PRETENDED_SAMPLES": str(steps * (1 if apart else len(names))),
                "PRETENDED_SECONDS": str(step),
            },
            prefix=("ip", "netns", "exec", name),
        )
    for task in local.tasks[before:]:
        if task.wait(600):
            sys.exit(task.text)
    ends = [line for name in names for line in metrics(folder / name) if line["event"] == "end"]
    return sum(float(line["images_per_second"]) for line in ends)


def main() -> None:
    """Print a table of efficiency by exchange mode and number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--speed", default="1gbit", help="as tc has it")
    parser.add_argument("--step", type=float, default=0.06, help="seconds of computing a step")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as name, hosts(Path(name), cold=True) as local:
        for count in options.hosts:
            with network(count, options.speed) as names:
                apart = rate(local, names, {}, LONG, options.step, apart=True)
                took = 1000 * count / apart
                say(f"{count} hosts, each for itself: {took:.1f} ms a step", options)
                for way in options.ways:
                    steps = LONG if "mode" in WAYS[way] else SHORT
                    whole = rate(local, names, WAYS[way], steps, options.step, apart=False)
                    found.setdefault(way, {})[count] = share = whole / apart
                    took = 1000 * count / whole
                    say(f"{count} hosts, {way}: {took:.1f} ms a step, {share:.1%}", options)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    sys.stdout.write(f"\nshare of the speed of the hosts each for itself, at {options.speed}\n")
    for way, shares in found.items():
        cells = "".join(f"{count:>4} hosts {share:6.1%}" for count, share in shares.items())
        sys.stdout.write(f"  {way:28}{cells}\n")


def say(text: str, options: argparse.Namespace) -> None:
    """Show progress, on standard error if the output is for a program."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


if __name__ == "__main__":
    main()
