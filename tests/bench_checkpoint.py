"""Time that training pauses for a checkpoint, and time in which hosts that join fetch one.

    python -m tests.bench_checkpoint [--saves 5]
    python -m tests.bench_checkpoint --fetch 1:1 2:1 3:1 1:3 [--size 256] [--speed 100mbit]

The first compares checkpoints written synchronously and by a thread. A ResNet-18 with SGD's
momentum, 90 MB, on the CPU or the first GPU, trains between saves; both ways take turns within one
run, so that other load of the machine and its disk hardly affects the ratio.

The second: so many hosts have the checkpoint, and so many lack it, for example 2:1. Each host is a
network namespace whose link is shaped in both directions (bench_links.py), and runs the trainer's
own code without a training (trainer/peers.py). Needs root, ip and tc.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from tests.bench_links import network
from tests.ports import free_port
from tests.trainer.hosts import ROOT, hosts, write_job
from tests.trainer.small import noise, settings
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress
from trainer.checkpoints.saver import Saver
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.job import load_job
from trainer.core.models import build_model

WORK = 4.0
"""Seconds of training between two saves: an epoch of minutes would hide the writer entirely."""


def measure_saves(saves: int) -> None:
    """Print the stall of both ways to save."""
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


def measure_fetch(having: int, lacking: int, mebibytes: int, speed: str) -> None:
    """Print the seconds until the last host has the checkpoint, and what each host has sent.

    The hosts that lack it come first: rank 0 is one of them.
    """
    count, peers = having + lacking, ROOT / "tests" / "trainer" / "peers.py"
    with tempfile.TemporaryDirectory() as name, hosts(Path(name), cold=True) as local:
        folder, port = Path(name), free_port()
        folders = [folder / f"pc{number + 1}" for number in range(count)]
        file, cases = write_job(folder), folder / "cases.json"
        cases.write_text(json.dumps([{"folders": list(map(str, folders))}]))
        job, values = load_job(file), torch.rand(mebibytes * 2**18)
        saved = checkpoint.pack({"weights": values}, Progress(1, 0, 9), job, count)
        for each in folders[lacking:]:
            checkpoint.write(each, saved, job, 1)
        with network(count, speed) as names:
            for number, place in enumerate(names):
                group = ["--nnodes", str(count), "--node-rank", str(number)]
                group += ["--master-addr", "10.91.0.1", "--master-port", str(port)]
                local.start(
                    place,
                    ("-m", "torch.distributed.run", *group, str(peers), str(cases)),
                    {"PYTHONPATH": ROOT, "KIT_JOB": file, "GLOO_SOCKET_IFNAME": "eth0"},
                    prefix=("ip", "netns", "exec", place),
                )
            for task in local.tasks:
                if task.wait(3600):
                    sys.exit(task.text)
        lines = [line for task in local.tasks for line in task.text.splitlines()]
        found = [json.loads(line[7:]) for line in lines if line.startswith("peers: ")]
        for line in sorted(line for line in lines if ": has step-00000009 after" in line):
            print(f"  {line}")
    sent = [sum(each["sent"].values()) / len(saved.state) for each in found]
    seconds = max(each["seconds"] for each in found)
    shares = " ".join(f"{share:.2f}" for share in sent)
    print(f"{having} have it, {lacking} lack it: {seconds:.1f} s; sent by each host: {shares}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--fetch", nargs="+", default=[], help="hosts with and without, as 2:1")
    parser.add_argument("--size", type=int, default=256, help="MiB of the checkpoint")
    parser.add_argument("--speed", default="100mbit", help="as tc has it")
    options = parser.parse_args()
    for pair in options.fetch:
        having, lacking = map(int, pair.split(":"))
        measure_fetch(having, lacking, options.size, options.speed)
    if not options.fetch:
        measure_saves(options.saves)


if __name__ == "__main__":
    main()
