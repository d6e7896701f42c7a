"""What this training is worth beside others: ratios of images/s.

    python -m tests.bench_training [engine | loop | processes | balance] [--repeats N]

engine     jobs/digits.yaml by `kit deploy --engine local` on two hosts of one GPU each, and by plain
           torchrun with two processes
loop       this trainer and the loop of PyTorch's tutorials (tests/trainer/tutorial.py), one process
processes  three processes and one, on one core, with one global batch: what the exchange costs
balance    two ranks, one of which takes twice as long for a sample, with even and with fitted shares

The sides of a comparison take turns, so a ratio holds whatever else the machine does; it is the
median of the ratios of all turns, with the least and the greatest behind it. Images/s are medians.
GPUs are used where there are enough: two for engine, one for loop.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from torch import distributed

from kit.engine.devices import local_gpus
from tests.engine.cluster import cluster_in, free_port
from tests.trainer import tutorial
from tests.trainer.hosts import ROOT, Hosts, hosts, metrics, write_job
from trainer.checkpoint import Progress
from trainer.config import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.data import DataSet, Samples, load_data
from trainer.steps import Stop, train_epoch
from trainer.train import set_up
from trainer.world import join_world

T = TypeVar("T")

SETTLED = 2
"""Epochs that are not looked at: caches fill, and `balance: auto` comes to know the ranks."""
LONGEST = 1800.0
"""Seconds for one training: something hangs."""
INVENTORY = """\
cluster: test
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  pc2: {address: 192.168.8.114, gpus: 1}
"""
BATCH = 256
"""Of `loop`."""


def engine(repeats: int, epochs: int, _: int) -> None:
    """Checkpoints are left to the end: two hosts write two of them, one host only one."""
    print(f"engine: digits, 2 processes, {epochs} epochs, {repeats} turns")
    gpus = local_gpus()[:2]
    plain = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),  # As the engine does.
        "CUDA_VISIBLE_DEVICES": ",".join(gpus) if len(gpus) == 2 else "",
    }
    with temporary() as folder, cluster_in(folder, INVENTORY) as cluster, hosts(folder) as local:
        state = {"PYTHONPATH": ROOT, "XDG_STATE_HOME": cluster.environment["XDG_STATE_HOME"]}
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
    compare("torchrun / kit deploy", rates["torchrun"], rates["kit deploy"], "images/s, aim <= 1.02")
    compare("kit deploy / torchrun", times["kit deploy"], times["torchrun"], "whole command")


def loop(repeats: int, _: int, samples: int) -> None:
    """One epoch of each side is a turn, in this process; the first of each does not count."""
    world = join_world({"KIT_HOST": "bench"}, timedelta(seconds=60))
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (samples,), generator=draw)
    usual = tutorial.Trainer(tutorial.Images(images, labels), BATCH, world.device)
    sides: dict[str, Callable[[], float]] = {"tutorial's loop, fp32": timed(samples, usual.run_epoch)}
    fast = world.device.type == "cuda"
    for precision in ("auto", "fp32") if fast else ("auto",):
        settings = Train(
            dataset="cifar10",
            model="lenet",
            epochs=repeats + 1,
            batch_size=BATCH,
            learning_rate=0.001,
            precision=precision,
        )
        job = TrainJob("bench", settings, Exchange(), Checkpoint(), Metrics())
        name, run_epoch = ours(job, world, like_cifar10(images, labels))
        sides[name] = timed(samples, run_epoch)
    print(f"loop: lenet, {samples:,} x 3x32x32, batch {BATCH}, {world.device}, {repeats} turns")
    turns(1, sides)
    found = turns(repeats, sides)
    distributed.destroy_process_group()
    for side, rates in found.items():
        show(side, rates)
    first, *others = found
    for side in others:
        compare(f"{side} / tutorial's loop", found[side], found[first], "images/s")


def ours(job: TrainJob, world: Any, data: DataSet) -> tuple[str, Callable[[], object]]:
    """This trainer's name and its next epoch; what it shows of itself is not shown."""
    with redirect_stdout(io.StringIO()):
        state = set_up(job, world, data, Path(), time.monotonic())
    progress, stop = Progress(0, 0, 0), Stop()

    def run_epoch() -> None:
        nonlocal progress
        with redirect_stdout(io.StringIO()):
            progress = train_epoch(state, progress, stop).progress

    return f"this trainer, {state.precision}", run_epoch


def like_cifar10(images: torch.Tensor, labels: torch.Tensor) -> DataSet:
    """A data set that is not augmented: digits, with other images in it."""
    digits = load_data(
        Train(dataset="digits", model="cnn", epochs=1, batch_size=1, learning_rate=1.0), Path()
    )
    half = torch.full((3, 1, 1), 127.5)
    samples = Samples(images, labels)
    return replace(digits, train=samples, test=samples, mean=half, deviation=half.clone())


def timed(samples: int, work: Callable[[], object]) -> Callable[[], float]:
    """The same work, which returns how many samples it does in a second."""

    def work_timed() -> float:
        began = time.perf_counter()
        work()
        return samples / (time.perf_counter() - began)

    return work_timed


def processes(repeats: int, epochs: int, _: int) -> None:
    """One core for all, so that nothing is won by more processes."""
    core = max(os.sched_getaffinity(0))
    print(f"processes: digits, global batch 192, core {core}, {epochs} epochs, {repeats} turns")
    with temporary() as folder, hosts(folder) as local:

        def side(number: int) -> Callable[[], float]:
            batch = 192 // number
            changes = {"batch_size": batch, "epochs": epochs, "every_epochs": epochs}
            job = write_job(folder, f"processes-{number}", **changes)

            def work() -> float:
                with pinned(core):
                    return rate(train(local, job, number)[0])

            return work

        found = turns(repeats, {f"{number} x {192 // number}": side(number) for number in (1, 3)})
    for name, rates in found.items():
        show(name, rates)
    compare("3 x 64 / 1 x 192", found["3 x 64"], found["1 x 192"], "images/s")


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started here runs on one core, with all that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def balance(repeats: int, epochs: int, _: int) -> None:
    """The ranks' speed is pretended (tests/trainer/faulty.py): their work is mostly a pause."""
    print(f"balance: digits, 64 a process, {epochs} epochs, {repeats} turns")
    ends: list[list[float]] = []
    with temporary() as folder, hosts(folder) as local:

        def side(number: int, slow: int, way: str) -> Callable[[], float]:
            changes = {"batch_size": 64, "epochs": epochs, "every_epochs": epochs, "balance": way}
            job = write_job(folder, f"{number}-{slow}-{way}", **changes)
            more = {"FAULT_JOB": str(job), "FAULT": "half", "FAULT_RANK": str(slow)}

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
    """Images/s of a training, the median of its epochs but the first."""
    rates = [line["images_per_second"] for line in lines if line["event"] == "epoch"]
    return statistics.median(rates[settled:])


def turns(repeats: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Let the sides take turns; return what each has measured."""
    found: dict[str, list[T]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, work in sides.items():
            found[side].append(work())
    return found


def show(label: str, rates: list[float], note: str = "") -> None:
    print(f"  {label:<42}{statistics.median(rates):>10,.0f} images/s{note}")


def compare(label: str, above: list[float], below: list[float], what: str) -> None:
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    middle, least, greatest = statistics.median(ratios), min(ratios), max(ratios)
    print(f"  {label:<42}{middle:>10.3f} ({least:.3f} to {greatest:.3f}) {what}", flush=True)


COMPARISONS = {"engine": engine, "loop": loop, "processes": processes, "balance": balance}
EPOCHS = {"engine": 40, "loop": 1, "processes": 12, "balance": 8}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_training")
    parser.add_argument("which", nargs="?", choices=COMPARISONS, help="default: all of them")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--epochs", type=int, help=f"{SETTLED + 1} or more; loop has its own")
    parser.add_argument("--samples", type=int, default=50_000, help="of loop")
    given = parser.parse_args()
    if given.repeats < 1 or given.samples < 1 or (given.epochs or SETTLED + 1) <= SETTLED:
        parser.error(f"at least 1 repeat, 1 sample and {SETTLED + 1} epochs")
    # As an exception, so that what runs is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.cuda.device_count()} GPUs")
    for name in [given.which] if given.which else COMPARISONS:
        COMPARISONS[name](given.repeats, given.epochs or EPOCHS[name], given.samples)


if __name__ == "__main__":
    main()
