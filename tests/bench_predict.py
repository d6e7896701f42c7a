"""How near the prediction of `kit plan` is to trainings on slow links.

    python -m tests.bench_predict [--hosts 2 3 4] [--speed 1gbit] [--step 0.06] [--ways WAY…]

Each host is a network namespace of this machine, as in tests/bench_links.py, which also explains
the pretended computing. With a long step the processors of this machine matter little: a link of
1 Gbit/s with a step of 0.6 s has the proportions of 10 Gbit/s with 0.06 s. `kit bench` measures the
links by its own program; a step is measured on the hosts alone; `kit plan --json` predicts. Then
the trainer runs. Needs root, ip and tc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from kit.bench.file import store
from kit.bench.measure import measure, start
from kit.hosts.programs import Program
from kit.measurements import Measurements, StepTime
from kit.model import Host
from kit.rendered import program_text
from tests.bench_links import LONG, SHORT, WAYS, network, rate
from tests.trainer.hosts import ROOT, Hosts, hosts

COMPARED = ("plain DDP", "fp16 hook", "local SGD 16", "local SGD 16 fp16 overlapped")
RESNET18 = 11_173_962
EVERY = 16
"""The steps between two exchanges of the compared ways with local steps."""
SHORT_STEP = 0.06
"""Seconds; with it an epoch has `LONG` steps where there are local ones, and fewer with longer."""


def measured_links(names: list[str]) -> Measurements:
    """Measure the links of namespaces as `kit bench` does those of hosts."""
    machines = [
        Host(name, f"10.91.0.{number}", "", (), (), None, 10**9, ())
        for number, name in enumerate(names, start=1)
    ]
    program = (sys.executable, "-u", "-c", program_text("probe.py"))
    commands = {name: ("ip", "netns", "exec", name, *program) for name in names}
    with ExitStack() as stack:
        agents = {
            name: each for name, each in start(commands, stack).items() if isinstance(each, Program)
        }
        results = measure(machines, agents, lambda _: None)
    if results.failures:
        sys.exit("\n".join(results.failures))
    return results.measurements


def predicted(
    folder: Path, names: list[str], way: dict[str, Any], links: Measurements, seconds: float
) -> float:
    """Return the images per second on all hosts, as `kit plan` predicts them."""
    inventory = {
        "cluster": "bench",
        "engine": "compose",
        "hosts": {
            name: {"address": f"10.91.0.{number}", "gpus": 1, "roles": ["manager"]}
            for number, name in enumerate(names, start=1)
        },
    }
    job = {
        "image": "trainer:bench",
        "train": {"dataset": "cifar10", "model": "resnet18", "epochs": 2, "batch_size": 1},
        "exchange": {**way, "warm_up_steps": 0} if "mode" in way else way,
    }
    (folder / "jobs").mkdir(exist_ok=True)
    (folder / "inventory.yaml").write_text(yaml.safe_dump(inventory))
    (folder / "jobs" / "bench.yaml").write_text(yaml.safe_dump(job))
    step = StepTime("bench", names[0], "GPU 0", seconds, 1, RESNET18, "resnet18", "cifar10")
    new = Measurements("", links.hosts, links.links, links.reductions, (step,))
    (folder / "measurements.json").unlink(missing_ok=True)
    store(folder / "inventory.yaml", new)
    command = [sys.executable, "-m", "kit", "plan", "--json"]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True
    )
    prediction = json.loads(done.stdout)["jobs"][0]["prediction"]
    return float(prediction["forecasts"][-1]["images_per_second"])


def compare(local: Hosts, count: int, speed: str, step: float, ways: Sequence[str]) -> None:
    """Print a line for each way of exchange."""
    long = max(2 * EVERY, round(LONG * SHORT_STEP / step / EVERY) * EVERY)
    with network(count, speed) as names, tempfile.TemporaryDirectory() as folder:
        links = measured_links(names)
        alone = rate(local, names, {}, long, step, apart=True) / count
        for name in ways:
            way = WAYS[name]
            said = predicted(Path(folder), names, way, links, 1 / alone)
            steps = long if "mode" in way else SHORT
            seen = rate(local, names, way, steps, step, apart=False)
            print(
                f"{speed:>8}  {count} hosts  {name:28}  "
                f"predicted {1000 * count / said:6.1f} ms a step, "
                f"seen {1000 * count / seen:6.1f} ms, {said / seen - 1:+5.0%} images/s",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--speed", default="1gbit", help="as tc has it")
    parser.add_argument("--step", type=float, default=SHORT_STEP, help="seconds of computing")
    parser.add_argument("--ways", nargs="+", default=COMPARED, choices=COMPARED)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, hosts(Path(name), cold=True) as local:
        for count in options.hosts:
            compare(local, count, options.speed, options.step, options.ways)


if __name__ == "__main__":
    main()
