"""Time that training pauses for a checkpoint, written synchronously and by a thread.

    python -m tests.bench_checkpoint [saves]

A ResNet-18 with SGD's momentum, 90 MB, on the CPU or the first GPU, trains between saves; both ways
take turns within one run, so that other load of the machine and its disk hardly affects the ratio.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from tests.trainer.small import noise, settings
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress
from trainer.checkpoints.saver import Saver
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.models import build_model

WORK = 4.0
"""Seconds of training between two saves: an epoch of minutes would hide the writer entirely."""


def main(saves: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(settings(model="resnet18"), noise(3, 32)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.rand(8, 3, 32, 32, device=device)
    labels = torch.zeros(8, dtype=torch.int64, device=device)
    train = Train(dataset="cifar10", model="resnet18", epochs=1, batch_size=8, learning_rate=0.1)
    job = TrainJob("bench", train, Exchange(), Checkpoint(keep=2), Metrics())

    def work() -> int:
        deadline, steps = time.monotonic() + WORK, 0
        while time.monotonic() < deadline:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            # As in training, where each step ends with an exchange.
            torch.cuda.synchronize() if device.type == "cuda" else None
            steps += 1
        return steps

    work()
    stalls: dict[bool, list[float]] = {False: [], True: []}
    rates: dict[bool, list[float]] = {False: [], True: []}
    savers = {way: Saver(asynchronous=way) for way in (False, True)}
    with tempfile.TemporaryDirectory() as name:
        for number in range(2 * saves + 2):
            way = bool(number % 2)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            progress, folder = Progress(0, 0, number), Path(name)

            def write(state: dict[str, object], progress: Progress = progress) -> None:
                packed = checkpoint.pack(state, progress, job, 1)
                checkpoint.write(folder, packed, job, keep=2)  # noqa: B023

            began = time.monotonic()
            savers[way].save(state, write)
            stall = time.monotonic() - began
            steps = work()
            savers[way].wait()
            # The first of each allocates memory, which later ones reuse.
            if number > 1:
                stalls[way].append(stall)
                rates[way].append(steps / WORK)
        size = next(Path(name).rglob("state.pt")).stat().st_size
    print(
        f"{device}, {size / 1e6:.0f} MB, {saves} saves each way, {WORK:g} s of training after each"
    )
    for way, label in ((False, "synchronous"), (True, "asynchronous")):
        stall = statistics.median(stalls[way]) * 1000
        worst, rate = max(stalls[way]) * 1000, statistics.median(rates[way])
        print(f"{label:13s}stall {stall:8.1f} ms (worst {worst:.1f}), then {rate:.2f} steps/s")
    ratio = statistics.median(stalls[False]) / statistics.median(stalls[True])
    print(f"synchronous / asynchronous: {ratio:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
