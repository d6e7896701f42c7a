"""Trainings of real processes, for the checks: data that are made here, jobs, results."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.check import Place
from tests.trainer.hosts import ROOT, Hosts, Task, complete_steps, hosts, metrics, write_job

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "sleeps",
    "well",
]


LONGEST = 1200.0
"""Seconds for a training: on a CPU under load, the compiler alone takes minutes."""


@contextmanager
def local(place: Place) -> Iterator[Hosts]:
    """Hosts whose processes are started as those of users are."""
    with hosts(place.folder, cold=True) as found:
        yield found


def start(local: Hosts, name: str, environ: dict[str, Any] | None = None, **job: Any) -> Task:
    """Start a training of one process."""
    checkpoints = local.folder / name
    file = write_job(local.folder, name, **job)
    places = {"KIT_JOB": file, "KIT_CHECKPOINTS": checkpoints, "KIT_DATA": local.folder}
    more = {key: str(value) for key, value in (environ or {}).items()}
    return local.start(name, ["-m", "trainer.train"], {**places, "PYTHONPATH": ROOT, **more})


def pair(
    local: Hosts, name: str, nnodes: str = "2:2", count: int = 2, **job: Any
) -> tuple[Task, ...]:
    """Start hosts of one process each, which share a GPU if there is one.

    NCCL refuses ranks of one host which have the same GPU; under the names of different hosts they
    exchange through sockets, as real hosts do.
    """
    file = write_job(local.folder, name, **job)
    endpoint = local.rendezvous(nnodes)
    tasks = []
    for number in range(count):
        own = f"{name}-{number}"
        more: dict[str, Any] = {
            "NCCL_HOSTID": own, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
            "KIT_DATA": local.folder,
        }  # fmt: skip
        tasks.append(local.agent(own, file, endpoint, 1, **more))
    return tuple(tasks)


def finish(*tasks: Task) -> None:
    """Wait for trainings to end well; the limit of the check ends a longer wait."""
    for task in tasks:
        code = task.wait(LONGEST)
        assert code == 0, f"{task.log.name} ended with {code}:\n{task.text[-3000:]}"


def last(*folders: Path, event: str = "epoch") -> dict[str, Any]:
    """The last line of a training's metrics."""
    return next(line for line in reversed(metrics(*folders)) if line["event"] == event)


def rate(folder: Path) -> float:
    """The median of images/s or tokens/s of the epochs but the first."""
    lines = [line for line in metrics(folder) if line["event"] == "epoch"]
    kind = "tokens_per_second" if lines[-1].get("tokens_per_second") else "images_per_second"
    return float(statistics.median(line[kind] for line in lines[1:] or lines))


def sums(folder: Path) -> dict[str, str]:
    """The checksum of the state of each checkpoint."""
    manifests = {name: folder / name / "manifest.json" for name in complete_steps(folder)}
    files = {name: json.loads(each.read_text())["files"] for name, each in manifests.items()}
    return {name: str([each["sha256"] for each in found.values()]) for name, found in files.items()}


def write_text(file: Path, words: int, seed: int = 0) -> None:
    """Write a text of random words, a document in each line."""
    draw = random.Random(seed)
    lines = (" ".join(draw.choices(WORDS, k=50)) for _ in range(max(1, words // 50)))
    file.write_text("\n".join(lines) + "\n")


def write_cifar10(folder: Path, train: int, test: int) -> None:
    """Write the files of CIFAR-10 with other pictures: noise on a pattern for each class."""
    import numpy as np

    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    draw = np.random.default_rng(0)
    patterns = draw.integers(64, 192, (10, 3072))
    parts = [*((f"data_batch_{n}.bin", train // 5) for n in range(1, 6)), ("test_batch.bin", test)]
    for name, count in parts:
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        noise = draw.integers(-60, 60, (count, 3072), dtype=np.int16)
        pixels = (patterns[labels] + noise).clip(0, 255).astype(np.uint8)
        (place / name).write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())


def write_pictures(folder: Path, classes: int, count: int, side: int) -> None:
    """Write a folder of JPEG files, so many of each class."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    patterns = draw.integers(0, 256, (classes, 8, 8, 3), dtype=np.uint8)
    for label, pattern in enumerate(patterns):
        place = folder / f"class{label}"
        place.mkdir(parents=True)
        base = np.asarray(Image.fromarray(pattern).resize((side, side), Image.Resampling.BICUBIC))
        for number in range(count):
            noise = draw.integers(-20, 20, base.shape, dtype=np.int16)
            pixels = (base + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.jpg", quality=90)


def weights(folder: Path) -> dict[str, bytes]:
    """The weights of the newest checkpoint, as bytes."""
    import torch

    state = torch.load(folder / complete_steps(folder)[-1] / "state.pt", weights_only=True)
    return {name: each.numpy().tobytes() for name, each in state["model"].items()}
