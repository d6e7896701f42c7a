"""Requests a second and their latency, in batches and one by one, from 1 to 64 clients.

    python -m tests.bench_serve [--seconds 3] [--turns 3] [--clients 1,4,16,64] [model …]

Each model is served twice, by two servers that differ in batch.size alone, 64 or 1; both are there
all the time and are loaded in turns within one run, so that the ratio holds whatever else the
machine does. The clients are a process of their own, which sends the same bytes again and again
over connections that stay open and reads no more of an answer than its length. `http` is the same
server's /ready: what HTTP, routing and counting cost without any model.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.trainer.hosts import hosts
from tests.trainer.servers import Server, start
from tests.trainer.small import noise
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.models import build_model

CLIENTS = (1, 4, 16, 64)
MODELS = {
    # Dataset, model, image_size.
    "cnn": ("digits", "cnn", 8),
    "lenet": ("cifar10", "lenet", 32),
    "resnet18": ("cifar10", "resnet18", 32),
    "resnet18-8": ("folder", "resnet18", 8),
}


@dataclass(frozen=True)
class Figures:
    """The measurements of one turn."""

    rate: float  # Requests a second.
    median: float  # Milliseconds.
    slow: float  # Milliseconds, the 99th of 100.


def prepare(name: str, folder: Path) -> bytes:
    """Write a checkpoint of random weights; return one sample as JSON."""
    dataset, model, side = MODELS[name]
    channels = 1 if dataset == "digits" else 3
    train = Train(
        dataset=dataset,
        model=model,
        path="pets" if dataset == "folder" else "",
        image_size=side,
        epochs=1,
        batch_size=1,
        learning_rate=0.1,
    )
    job = TrainJob("bench", train, Exchange(), Checkpoint(), Metrics())
    torch.manual_seed(0)
    state = {"model": build_model(train, noise(channels, side)).state_dict()}
    labels = tuple("0123456789")
    checkpoint.write(folder, checkpoint.pack(state, Progress(1, 0, 1), job, 1, 0.5, labels), job, 1)
    image = np.random.default_rng(0).integers(0, 256, (channels, side, side))
    return json.dumps({"inputs": image.tolist(), "top": 3}).encode()


async def client(port: int, request: bytes, end: float, times: list[float]) -> None:
    """Send one request after the other; `times` are seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


async def load(port: int, request: bytes, clients: int, seconds: float) -> Figures:
    """So many clients for so many seconds."""
    times: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(client(port, request, began + seconds, times) for _ in range(clients)))
    took = time.perf_counter() - began
    cuts = np.percentile(times, (50, 99)) * 1000
    return Figures(len(times) / took, float(cuts[0]), float(cuts[1]))


def compare(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Print a model's table."""
    body = prepare(name, folder / "own")
    kind = "Content-Type: application/json\r\nContent-Length:"
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{kind} {len(body)}\r\n\r\n"
    requests = {"predict": head.encode() + body, "http": b"GET /ready HTTP/1.1\r\nHost: l\r\n\r\n"}
    with hosts(folder, cold=True) as local:
        servers: dict[str, Server] = {}
        for size in (64, 1):
            batch = {"size": size, "window": options.window if size > 1 else 0.0}
            environ = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
            servers[str(size)] = start(
                local, folder / "own", environ=environ, job="bench", batch=batch, timeout=60
            )
        sides = {
            "batches of 64": (servers["64"], requests["predict"]),
            "one by one": (servers["1"], requests["predict"]),
            "http": (servers["64"], requests["http"]),
        }
        print(f"\n{name}: {', '.join(map(str, MODELS[name][:2]))}, {len(body):,} bytes a request")
        for clients in options.clients:
            before = batches(servers["64"])
            found: dict[str, list[Figures]] = {side: [] for side in sides}
            for _ in range(options.turns):
                for side, (server, request) in sides.items():
                    turn = load(server.port, request, clients, options.seconds)
                    found[side].append(asyncio.run(turn))
            after = batches(servers["64"])
            report(clients, found, (after[0] - before[0]) / (after[1] - before[1]))


def batches(server: Server) -> tuple[float, float]:
    """Samples and batches so far."""
    name = "kit_serve_batch_size"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")


def report(clients: int, found: dict[str, list[Figures]], mean: float) -> None:
    """Print the medians of the turns, and the ratio of each turn; `mean` samples were a batch."""
    for side, turns in found.items():
        rate, median, slow = (
            statistics.median(getattr(turn, name) for turn in turns)
            for name in ("rate", "median", "slow")
        )
        print(
            f"  {clients:3} clients  {side:14} {rate:8,.0f} requests/s  "
            f"p50 {median:7.1f} ms  p99 {slow:7.1f} ms"
        )
    pairs = zip(found["batches of 64"], found["one by one"], strict=True)
    ratios = [first.rate / second.rate for first, second in pairs]
    middle = statistics.median(ratios)
    spread = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  {clients:3} clients  ratio {spread}, {mean:.1f} samples a batch")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["cnn", "resnet18-8", "resnet18"])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--window", type=float, default=0.005)
    parser.add_argument(
        "--clients",
        type=lambda text: [int(each) for each in text.split(",")],
        default=list(CLIENTS),
    )
    options = parser.parse_args()
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            compare(name, Path(folder), options)


if __name__ == "__main__":
    main()
