"""What supervision costs a training that nothing disturbs, on this machine.

    python -m tests.bench_supervision --turns 5

Two processes of one host train the same job in turn: under kit's agent and coordinator, with all
comparisons of the ranks, and under torchrun alone, without them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, hosts, metrics, write_job

EPOCHS = 40
FIRST = 5
"""Epochs that are not counted: caches and allocators are cold."""


def speed(folder: Path) -> float:
    """The median of images/s over the epochs."""
    lines = [line for line in metrics(folder) if line["event"] == "epoch"]
    return float(median(line["images_per_second"] for line in lines[FIRST:]))


def supervised(local: Hosts) -> float:
    """Train under the agent and the coordinator."""
    job = write_job(local.folder, epochs=EPOCHS, every_epochs=EPOCHS, batch_size=128)
    task = local.agent("pc1", job, local.rendezvous("1:1"), 2)
    assert task.wait() == 0, task.text
    return speed(local.folder / "pc1")


def alone(local: Hosts) -> float:
    """Train under torchrun."""
    changes: dict[str, Any] = {
        "epochs": EPOCHS,
        "every_epochs": EPOCHS,
        "batch_size": 128,
        "compare_every": 0,
    }
    job, folder = write_job(local.folder, **changes), local.folder / "alone"
    torchrun = ["-m", "torch.distributed.run", "--master-port", str(free_port())]
    task = local.start(
        "alone",
        [*torchrun, "--nproc-per-node", "2", "-m", "trainer.train"],
        {"KIT_JOB": job, "KIT_CHECKPOINTS": folder, "PYTHONPATH": ROOT},
    )
    assert task.wait() == 0, task.text
    return speed(folder)


def main() -> None:
    """Take turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    ratios = []
    for turn in range(parser.parse_args().turns):
        found = {}
        for way in (supervised, alone) if turn % 2 else (alone, supervised):
            with tempfile.TemporaryDirectory() as name, hosts(Path(name), cold=True) as local:
                found[way] = way(local)
        ratios.append(found[supervised] / found[alone])
        print(
            f"turn {turn + 1}: {found[supervised]:,.0f} images/s supervised, "
            f"{found[alone]:,.0f} alone, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"ratio: median {median(ratios):.3f}, worst {min(ratios):.3f} of {len(ratios)} turns")


if __name__ == "__main__":
    main()
