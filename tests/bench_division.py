"""Memory and speed of a divided GPT: what each rank holds, beside what `kit plan` says.

    python -m tests.bench_division
    python -m tests.bench_division --width 512 --layers 8 "{}" "{shard: 2}" "{tensor: 2}"

Each division trains the same batch, on as many processes as it needs. Bytes of parameters,
gradients and optimizer are counted in the tensors of a rank after its first steps; `peak` is the
growth of the process's memory, with activations and layers that are gathered for a moment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import yaml
from torch import Tensor

from kit.jobs import Job
from kit.plan.division import memory
from tests.ports import free_port
from trainer.contract.job import Checkpoint, Exchange, Metrics, Parallel, Train, TrainJob

ROOT = Path(__file__).parents[1]
DIVISIONS = ("{}", "{data: 2}", "{shard: 2}", "{shard: 4}", "{tensor: 2}", "{pipeline: 2}")
BATCH, STEPS = 8, 6


def job_of(wish: Parallel, layers: int, width: int) -> TrainJob:
    """Return a job with the same global batch for any division."""
    options = {"layers": layers, "heads": 8, "width": width, "tied": False}
    parts, steps = wish.cell // (wish.tensor or 1) // (wish.pipeline or 1), wish.pipeline or 1
    parts *= wish.data or 1
    train = Train(
        dataset="text", path="t.txt", model="gpt", options=options, context=128, epochs=1,
        batch_size=BATCH // parts // steps, accumulation=steps, optimizer="adamw",
    )  # fmt: skip
    return TrainJob("bench", train, Exchange(), Checkpoint(), Metrics(), parallel=wish)


def resident() -> int:
    """The largest memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def held(values: Any) -> int:
    """Bytes of this rank's parts of tensors."""
    from trainer.parallel.sharded import local

    tensors = [local(each) for each in values if isinstance(each, Tensor)]
    return sum(each.numel() * each.element_size() for each in tensors if each.ndim)


def work(wish: Parallel, layers: int, width: int) -> None:
    """Train some steps on this rank; rank 0 prints what it holds."""
    from datetime import timedelta

    from trainer.checkpoints.format import Progress
    from trainer.core.run import Stop
    from trainer.core.setup import set_up
    from trainer.core.step import train_step
    from trainer.data.load import load_data
    from trainer.parallel.world import join_world, leave_world

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t.txt").write_text("the cat sat on the mat. " * 4000)
        job = job_of(wish, layers, width)
        world = join_world(os.environ, timedelta(seconds=120))
        data = load_data(job.train, Path(folder))
        before = resident()
        run = set_up(job, world, data, Path(folder), time.monotonic())
        progress, order = Progress(), torch.arange(len(data.train))
        times = []
        for _ in range(STEPS):
            began = time.monotonic()
            progress = train_step(run, progress, order[progress.position :], None, Stop()).progress
            times.append(time.monotonic() - began)
        weights = list(run.model.parameters())
        states = [value for state in run.optimizer.state.values() for value in state.values()]
        figures = {
            "parameters": held(weights),
            "gradients": held(each.grad for each in weights),
            "optimizer": held(states),
            "peak": resident() - before,
            "step": min(times),
        }
        found = world.gather(figures)
        if world.rank == 0:
            most = {name: max(each[name] for each in found) for name in figures}
            print("figures", json.dumps(most), flush=True)
        leave_world(world)


def measure(text: str, layers: int, width: int) -> dict[str, float]:
    """Return the figures of the rank that holds the most."""
    wish = Parallel(**yaml.safe_load(text))
    ranks = (wish.data or 1) * wish.cell
    torchrun = ["-m", "torch.distributed.run", "--master-port", str(free_port())]
    argv = [*torchrun, "--nproc-per-node", str(ranks), "-m", "tests.bench_division"]
    options = ["--layers", str(layers), "--width", str(width), "--work", text]
    # Freed memory goes back at once, so that the peak is of what is held at a time.
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = str(ROOT)
    result = subprocess.run(
        [sys.executable, *argv, *options], env=environ, capture_output=True, text=True, check=False
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("figures ")]
    if not lines:
        sys.exit(result.stderr[-3000:])
    found: dict[str, float] = json.loads(lines[0].removeprefix("figures "))
    return found


def expected(text: str, layers: int, width: int) -> dict[str, int]:
    """Return the plan's estimate, without what CUDA itself needs."""
    wish = Parallel(**yaml.safe_load(text))
    train = replace(job_of(wish, layers, width).train, precision="fp32")
    # The estimate reads nothing else of a job.
    job = cast("Job", SimpleNamespace(train=train, parameters=None))
    found = memory(job, train, (), wish)
    assert found
    return {
        "parameters": found.parameters,
        "gradients": found.gradients,
        "optimizer": found.optimizer,
        "peak": found.total - found.context,
    }


def main() -> None:
    """Print a table of divisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("divisions", nargs="*", default=DIVISIONS)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(Parallel(**yaml.safe_load(given.work)), given.layers, given.width)
        return
    print("MB of a rank, measured / planned")
    heads = "".join(f"{name:>18}" for name in ("parameters", "gradients", "optimizer", "peak"))
    print(f"{'division':16}{heads}  s/step")
    for text in given.divisions:
        found = measure(text, given.layers, given.width)
        plan = expected(text, given.layers, given.width)
        cells = [f"{found[name] / 1e6:8.1f} / {plan[name] / 1e6:6.1f}" for name in plan]
        row = "".join(f"{cell:>18}" for cell in cells)
        print(f"{text:16}{row}{found['step']:8.2f}")


if __name__ == "__main__":
    main()
