"""Seconds to the first batch when a host has the data: `python -m tests.bench_first_batch`.

Two ways: a data set that its agent has fetched before (until the agent says that it is ready), and
shards that a stream has kept (until the first batch of 64 images is a tensor). The agent, and the
process that reads the stream, are new each time; both have ended their imports, which every
training needs. Beside them the same with an empty cache, from a server on this machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.trainer.datahosts import DataHosts, data_hosts, read_lines
from tests.trainer.hosts import ROOT
from trainer.datasets import store

READ = """
import sys, time
import torch
from pathlib import Path
from trainer.contract.job import Train
from trainer.streaming.samples import load_shards
from trainer.streaming.index import INDEX
began = time.perf_counter()
job = Train(dataset="shards", url=sys.argv[1], model="resnet18", epochs=1, batch_size=64)
data = load_shards(job, Path("."))[0][0]
order = data.order(0, 0)
data.expect(order.split(64)[:4], 0)
images, _ = data.take(order[:64], torch.device("cpu"))
assert len(images) == 64
print(time.perf_counter() - began, flush=True)
data.prefetch.end()
"""


def draw(folder: Path, images: int) -> None:
    """Write noise of 128 pixels a side as JPEG, of two classes."""
    chance = random.Random(0)
    for part, count in (("train", images), ("test", 64)):
        for number in range(count):
            place = folder / part / f"class-{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            noise = Image.frombytes("RGB", (128, 128), chance.randbytes(128 * 128 * 3))
            noise.save(place / f"{number}.jpg", quality=80)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, data_hosts(Path(name)) as world:
        folder = Path(name)
        draw(folder / "images", given.images)
        pack = ("-m", "trainer.streaming.pack", folder / "images", folder / "shards", "--mib", "16")
        subprocess.run([sys.executable, *pack], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        stored = store.add(
            world.store, "noise", str(folder / "shards"), "", None, store.Reporter(json=True)
        )
        world.serve()
        world.seeder()
        print(f"{stored.bytes / 1e6:.0f} MB in {len(stored.files)} files, {os.cpu_count()} cores")
        fetched = [fetch(world) for _ in range(given.repeats)]
        url = f"{world.url}/noise/1/data"
        streamed = [stream(url, folder / "kept") for _ in range(given.repeats)]
    for what, seconds in (("fetched by the agent", fetched), ("streamed", streamed)):
        warm = statistics.median(seconds[1:])
        print(f"  {what:<24} empty cache {seconds[0]:6.2f} s, warm {warm:6.3f} s, aim <= 2 s")


def fetch(world: DataHosts) -> float:
    """Seconds until a new agent of one cache has the data set."""
    agent = world.agent("cache")
    began = time.monotonic()
    assert read_lines(agent.ask("noise"))[-1]["state"] == "ready"
    seconds = time.monotonic() - began
    agent.task.process.terminate()
    agent.task.wait(30)
    return seconds


def stream(url: str, kept: Path) -> float:
    """Seconds until a new process has the first batch."""
    env = {**os.environ, "KIT_SHARD_CACHE": str(kept), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", READ, url], env=env, cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
