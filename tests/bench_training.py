"""Compares this training with others: ratios of images/s.

    python -m tests.bench_training [engine | loop | processes | balance] [--repeats N]

engine     jobs/digits.yaml by `kit deploy --engine local` on two hosts of one GPU each, and by
           plain torchrun with two processes
loop       this trainer and the loop of PyTorch's tutorials (tests/trainer/tutorial.py), in one
           process
processes  three processes and one, on one core, with the same global batch: the cost of the
           division for a cnn on images of MNIST's shape
balance    two ranks, one with twice the time for a sample, with even shares of every batch and
           with shares by speed

The sides of a comparison take turns, so that other load hardly affects the ratio. It is the median
of the ratios of all turns, followed by the least and the greatest. Images/s are medians. GPUs are
used if there are enough: two for engine, one for loop.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import distributed

from kit.targets.local.observe import local_gpus
from tests.epochs import FOREVER, Epochs, images_like, timed
from tests.ports import free_port
from tests.targets.cluster import cluster_in
from tests.trainer import tutorial
from tests.trainer.hosts import ROOT, Hosts, hosts, metrics, write_job
from tests.turns import compare, show, turns
from trainer.contract.job import Train
from trainer.parallel.world import join_world

SETTLED = 2
"""Epochs that are not measured: caches fill, and `balance: auto` measures the ranks."""
LONGEST = 1800.0
"""Timeout of one training, in seconds."""
INVENTORY = """\
cluster: test
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  pc2: {address: 192.168.8.114, gpus: 1}
"""
BATCH, GLOBAL, SHARED = 256, 192, 256
"""Batches: of `loop`, of all of `processes`, of each rank in `balance`."""


def engine(repeats: int, epochs: int, _: int) -> None:
    """Checkpoints are written only at the end: two hosts write two of them, one host one."""
    print(f"engine: digits, 2 processes, {epochs} epochs, {repeats} turns")
    gpus = local_gpus()[:2]
    plain = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),  # As the engine does.
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) if len(gpus) == 2 else "",
    }
    with (
        temporary() as folder,
        cluster_in(folder, INVENTORY, cold=True) as cluster,
        hosts(folder, cold=True) as local,
    ):
        home = cluster.environment["XDG_STATE_HOME"]
        state = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": home}
        job: dict[str, Any] = yaml.safe_load((ROOT / "jobs" / "digits.yaml").read_text())
        job["train"]["epochs"] = epochs
        job |= {"checkpoint": {"every_epochs": epochs}, "rendezvous": {"port": free_port()}}
        (folder / "jobs" / "digits.yaml").write_text(yaml.safe_dump(job))
        run(local, ["-m", "kit", "render"], state)
        (file,) = (folder / "compose").rglob("digits.json")

        def kit() -> tuple[float, float]:
            deploy = ["-m", "kit", "deploy", "digits", "--engine", "local", "--fresh"]
            seconds = run(local, deploy, state)
            found = [path.parent for path in cluster.state.rglob("metrics.jsonl")]
            return rate(metrics(*found)), seconds

        def torchrun() -> tuple[float, float]:
            lines, seconds = train(local, file, 2, plain)
            return rate(lines), seconds

        found = turns(repeats, {"kit deploy": kit, "torchrun": torchrun})
    rates = {side: [each[0] for each in pairs] for side, pairs in found.items()}
    times = {side: [each[1] for each in pairs] for side, pairs in found.items()}
    for side in found:
        show(side, rates[side], note=f", whole command {statistics.median(times[side]):.1f} s")
    what = "images/s, aim <= 1.02"
    compare("torchrun / kit deploy", rates["torchrun"], rates["kit deploy"], what)
    compare("kit deploy / torchrun", times["kit deploy"], times["torchrun"], "whole command")


def loop(repeats: int, _: int, samples: int) -> None:
    """One epoch of each side is a turn, in this process; the first of each does not count."""
    with temporary() as folder:
        compare_loops(repeats, samples, folder)


def compare_loops(repeats: int, samples: int, folder: Path) -> None:
    """As `loop`; the record of the trainings goes to a folder."""
    world = join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (samples,), generator=draw)
    usual = tutorial.Trainer(tutorial.Images(images, labels), BATCH, world.device)
    theirs = "tutorial's loop, fp32"
    sides = {theirs: timed(samples, usual.run_epoch, world.device)}
    # With the default precision and, if it differs, with that of the tutorials.
    precision: Any
    for precision in ("auto", "fp32"):
        settings = Train(
            dataset="cifar10", model="lenet", epochs=FOREVER, batch_size=BATCH,
            learning_rate=0.001, precision=precision,
        )  # fmt: skip
        run_epoch = Epochs(world, images_like(images, labels), settings, folder)
        name = f"this trainer, {run_epoch.run.precision}"
        sides.setdefault(name, timed(samples, run_epoch, world.device))
    print(f"loop: lenet, {samples:,} x 3x32x32, batch {BATCH}, {world.device}, {repeats} turns")
    turns(1, sides)
    found = turns(repeats, sides)
    distributed.destroy_process_group()
    for side, rates in found.items():
        show(side, rates)
        if side != theirs:
            compare(f"{side} / tutorial's loop", rates, found[theirs], "images/s")


def processes(repeats: int, epochs: int, samples: int) -> None:
    """One core for all, so that more processes give no speedup."""
    core = max(os.sched_getaffinity(0))
    print(
        f"processes: cnn, {samples:,} x 1x28x28, global batch {GLOBAL}, core {core}, "
        f"{epochs} epochs, {repeats} turns"
    )
    with temporary() as folder, hosts(folder, cold=True) as local:
        write_mnist(folder, samples)

        def side(number: int) -> Callable[[], float]:
            settings = {"dataset": "mnist", "learning_rate": 0.01, "epochs": epochs}
            settings |= {"batch_size": GLOBAL // number, "every_epochs": epochs}
            job = write_job(folder, f"processes-{number}", **settings)

            def work() -> float:
                with pinned(core):
                    return rate(train(local, job, number, {"KIT_DATA": str(folder)})[0])

            return work

        one, three = f"1 x {GLOBAL}", f"3 x {GLOBAL // 3}"
        found = turns(repeats, {one: side(1), three: side(3)})
    for name, rates in found.items():
        show(name, rates, f", {1000 * GLOBAL / statistics.median(rates):.1f} ms a step")
    compare(f"{three} / {one}", found[three], found[one], "images/s")


def write_mnist(folder: Path, samples: int) -> None:
    """Write the four files of MNIST, with noise in them."""
    for part, number in (("train", samples), ("t10k", GLOBAL)):
        images = torch.randint(256, (number, 28, 28), dtype=torch.uint8)
        labels = torch.randint(10, (number,), dtype=torch.uint8)
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + content.numpy().tobytes())


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes started in this context, and their children, run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def balance(repeats: int, epochs: int, _: int) -> None:
    """The ranks' speed is simulated (tests/trainer/faulty.py): their work is mostly a pause."""
    print(f"balance: digits, {SHARED} a rank, {epochs} epochs, {repeats} turns")
    ends: list[list[float]] = []
    with temporary() as folder, hosts(folder, cold=True) as local:

        def side(number: int, slow: int, way: str) -> Callable[[], float]:
            settings = {"batch_size": SHARED, "balance": way}
            settings |= {"epochs": epochs, "every_epochs": epochs}
            job = write_job(folder, f"{number}-{slow}-{way}", **settings)
            more = {"FAULT": "half", "FAULT_RANK": str(slow)}

            def work() -> float:
                lines, _ = train(local, job, number, more, "tests.trainer.faulty")
                if way == "auto":
                    ends.append(lines[-1]["batch"])
                return rate(lines, max(SETTLED, epochs // 2))

            return work

        sides = {
            "fast rank alone": side(1, 1, "even"),
            "slow rank alone": side(1, 0, "even"),
            "together, even": side(2, 1, "even"),
            "together, auto": side(2, 1, "auto"),
        }
        found = turns(repeats, sides)
    for name, rates in found.items():
        show(name, rates)
    total = [sum(pair) for pair in zip(*list(found.values())[:2], strict=True)]
    show("sum of both alone", total)
    compare("even / sum", found["together, even"], total, "images/s")
    batch = " and ".join(f"{100 * share:.0f} %" for share in ends[-1])
    compare("auto / sum", found["together, auto"], total, f"images/s, aim >= 0.95; batch {batch}")


@contextmanager
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def train(
    local: Hosts,
    job: Path,
    processes: int,
    more: Mapping[str, str] | None = None,
    module: str = "trainer.train",
) -> tuple[list[dict[str, Any]], float]:
    """A job, on the CPU unless `more` says otherwise: its metrics and its seconds."""
    checkpoints = local.folder / f"checkpoints-{len(local.tasks)}"
    argv = ["-m", module]
    if processes > 1:
        argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        argv += ["-m", module]
    places = {"PYTHONPATH": ROOT, "KIT_JOB": job, "KIT_CHECKPOINTS": checkpoints}
    seconds = run(local, argv, {**places, "CUDA_VISIBLE_DEVICES": "", **(more or {})})
    return metrics(checkpoints), seconds


def run(local: Hosts, argv: list[str], environ: Mapping[str, str | Path]) -> float:
    """Run a command of Python's to its end; return its seconds."""
    began = time.perf_counter()
    task = local.start("bench", argv, environ)
    code = task.wait(LONGEST)
    seconds = time.perf_counter() - began
    if code:
        raise SystemExit(f"{' '.join(argv)} ended with {code}:\n{task.text}")
    return seconds


def rate(lines: list[dict[str, Any]], settled: int = SETTLED) -> float:
    """Images/s of a training, the median of its epochs but the first, if it has more."""
    rates = [float(line["images_per_second"]) for line in lines if line["event"] == "epoch"]
    return statistics.median(rates[settled:] or rates[-1:])


COMPARISONS = {"engine": engine, "loop": loop, "processes": processes, "balance": balance}
# Epochs and samples, where they can be chosen.
SIZES = {"engine": (40, 0), "loop": (0, 50_000), "processes": (5, 4_800), "balance": (10, 0)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_training")
    parser.add_argument("which", nargs="?", choices=COMPARISONS, help="default: all of them")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--epochs", type=int, help="of all but loop")
    parser.add_argument("--samples", type=int, help="of loop and processes")
    given = parser.parse_args()
    if any(
        value is not None and value < 1 for value in (given.repeats, given.epochs, given.samples)
    ):
        parser.error("the numbers must be 1 or more")
    # As an exception, so that running processes are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.cuda.device_count()} GPUs")
    for name in [given.which] if given.which else COMPARISONS:
        epochs, samples = SIZES[name]
        COMPARISONS[name](given.repeats, given.epochs or epochs, given.samples or samples)


if __name__ == "__main__":
    main()
