"""The accuracy that each exchange mode costs, on real data: scikit-learn's digits.

    python -m tests.bench_accuracy [--replicas 2 3 4] [--seeds 5] [--epochs 20]

Every mode trains the same job with the same seeds; a seed also determines the test images. The
output has the mean accuracies over the seeds, the loss against plain DDP in percentage points, and
the standard error of that difference over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.hosts import ROOT, hosts, write_job
from trainer.checkpoints.format import Progress
from trainer.core.epoch import train_epoch
from trainer.core.evaluation import evaluate
from trainer.core.job import load_job
from trainer.core.run import Stop
from trainer.core.setup import set_up
from trainer.data.load import load_data
from trainer.parallel.world import World, join_world, leave_world

WAYS: dict[str, dict[str, Any]] = {
    "plain DDP": {},
    "fp16 hook": {"compression": "fp16"},
    "PowerSGD": {"compression": "powersgd"},
    "local SGD 8 fp16 overlapped": {
        "mode": "local_sgd",
        "every_steps": 8,
        "compression": "fp16",
        "overlap": True,
    },
    "local SGD 16 fp16 overlapped": {
        "mode": "local_sgd",
        "every_steps": 16,
        "compression": "fp16",
        "overlap": True,
    },
    "plain DDP, AdamW": {"optimizer": "adamw", "learning_rate": 0.002},
    "DiLoCo 64 fp16, AdamW": {
        "mode": "diloco",
        "every_steps": 64,
        "compression": "fp16",
        "optimizer": "adamw",
        "learning_rate": 0.002,
    },
}
WARM_UP = 15
"""Plain steps, an epoch: after the default of 100 the modes would hardly differ."""
GLOBAL_BATCH = 96
"""As in jobs/digits.yaml, for any number of replicas."""


def accuracy(world: World, folder: Path, settings: dict[str, Any]) -> float:
    """Train a job in this process group; return the accuracy on the test images."""
    own = folder / str(world.rank)
    own.mkdir(exist_ok=True)
    job = load_job(write_job(own, batch_size=GLOBAL_BATCH // world.size, **settings))
    run = set_up(job, world, load_data(job.train, folder), own, 0.0)
    epoch = train_epoch(run, Progress(), Stop())
    while epoch.progress.epoch < job.train.epochs:
        epoch = train_epoch(run, epoch.progress, Stop())
    found = evaluate(run, run.data.test).accuracy
    assert found is not None
    return found


def work(folder: Path, seeds: int, epochs: int, ways: Sequence[str]) -> None:
    """Run one of the replicas; rank 0 writes the accuracies of all modes and seeds."""
    world = join_world(os.environ, timedelta(seconds=60))
    found: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(seeds):
        for way in ways:
            plain = not WAYS[way].keys() & {"mode"} and WAYS[way].get("compression") != "powersgd"
            begin = {} if plain else {"warm_up_steps": WARM_UP}
            settings = {**begin, **WAYS[way], "seed": seed, "epochs": epochs}
            found[way].append(accuracy(world, folder, settings))
    if world.rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    leave_world(world)


def main() -> None:
    """Print a table of accuracy by exchange mode and number of replicas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.seeds, options.epochs, options.ways)
        return
    for replicas in options.replicas:
        with tempfile.TemporaryDirectory() as name, hosts(Path(name), cold=True) as local:
            task = local.start(
                "replicas",
                [
                    *("-m", "torch.distributed.run", "--nproc-per-node", str(replicas)),
                    *("--master-port", str(free_port()), "-m", "tests.bench_accuracy"),
                    *("--work", name, "--seeds", str(options.seeds)),
                    *("--epochs", str(options.epochs), "--ways", *options.ways),
                ],
                {"PYTHONPATH": ROOT},
            )
            if task.wait(3600):
                sys.exit(task.text)
            found = json.loads((Path(name) / "found.json").read_text())
        show(replicas, found)


def show(replicas: int, found: dict[str, list[float]]) -> None:
    """Print the figures of one number of replicas."""
    print(f"{replicas} replicas, {len(next(iter(found.values())))} seeds", flush=True)
    plain = next(iter(found.values()))
    for way, values in found.items():
        lost = [100 * (one - other) for one, other in zip(plain, values, strict=True)]
        error = statistics.stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else 0.0
        mean = 100 * statistics.fmean(values)
        print(f"  {way:30} {mean:6.2f} %  lost {statistics.fmean(lost):+5.2f} ± {error:.2f}")


if __name__ == "__main__":
    main()
