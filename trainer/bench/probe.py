"""Measures the disks, the GPUs and the CPU of a host, and answers the requests of `kit bench`."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.bench.links import CHUNK, finish, ping, reduce, serve, store, stream

MOST_READ = 2 * 2**30
WRITTEN = 256 * 2**20
MATRIX = 8192
"""Rows and columns of a product: large enough for the tensor cores of present GPUs."""
COPIED = 2**30
CPU_WINDOWS = 5


def disk(folder: str, seconds: float) -> dict[str, Any]:
    """Read the files of a folder for some seconds, without the kernel's cache.

    If it has less than 16 MiB, a file is written, read and removed in the container.
    """
    found = sorted(_files(Path(folder)), reverse=True) if folder else []
    if sum(size for size, _ in found) >= 16 * CHUNK:
        read, taken = _read([path for _, path in found], seconds)
        return {"read": read / taken, "of": "data"}
    with tempfile.NamedTemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(WRITTEN // CHUNK):
            file.write(os.urandom(1024) * (CHUNK // 1024))
        file.flush()
        os.fsync(file.fileno())
        written = WRITTEN / (time.perf_counter() - began)
        read, taken = _read([Path(file.name)], seconds)
    return {"read": read / taken, "write": written, "of": "container"}


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path.stat().st_size, path


def _read(paths: list[Path], seconds: float) -> tuple[int, float]:
    """Return the number of bytes read, and the seconds."""
    buffer, read, began = bytearray(4 * CHUNK), 0, time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while number := file.readinto(buffer):
                read += number
                if time.perf_counter() - began > seconds or read > MOST_READ:
                    return read, time.perf_counter() - began
    return read, max(time.perf_counter() - began, 1e-9)


def compute(seconds: float) -> dict[str, Any]:
    """Measure each visible GPU, or the CPU if there is none."""
    import torch

    if not torch.cuda.is_available():
        return {"gpus": [], "cpu_steps": _cpu_steps(seconds)}
    return {"gpus": [_gpu(number, seconds) for number in range(torch.cuda.device_count())]}


def _gpu(number: int, seconds: float) -> dict[str, Any]:
    """Measure a product of half-precision matrices (operations per second) and a copy (bytes)."""
    import torch

    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    with torch.inference_mode():
        one = torch.randn(MATRIX, MATRIX, device=device, dtype=torch.float16)
        product = _rate(lambda: torch.mm(one, one), seconds)
        source = torch.empty(COPIED, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy = _rate(lambda: target.copy_(source), seconds)
    properties = torch.cuda.get_device_properties(number)
    return {
        "model": properties.name,
        "uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "",
        # 2n³ operations; a copy reads and writes.
        "operations": 2 * MATRIX**3 * product,
        "memory": 2 * COPIED * copy,
    }


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Return the runs of `work` per second on the GPU, after a warm-up."""
    for _ in range(3):
        work()
    finish("cuda")
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            work()
        finish("cuda")
        done += 10
    return done / (time.perf_counter() - began)


def _cpu_steps(seconds: float) -> float:
    """Return the training steps per second of a small convolutional network on one core.

    The best of some windows is used, as other processes slow the rest.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(1024, 10)),
    )
    images, labels = torch.randn(64, 3, 32, 32), torch.zeros(64, dtype=torch.int64)

    def step() -> None:
        model.zero_grad()
        loss: Any = functional.cross_entropy(model(images), labels)
        loss.backward()

    step()
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        window, done = time.perf_counter(), 0
        while time.perf_counter() - window < seconds / CPU_WINDOWS:
            step()
            done += 1
        best = max(best, done / (time.perf_counter() - window))
    return best


def hello() -> dict[str, Any]:
    """Answer that this program runs."""
    return {"python": sys.version.split()[0]}


def warm() -> dict[str, Any]:
    """Import PyTorch, which takes seconds, so that no measurement includes it."""
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda or ""}


REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (hello, serve, ping, stream, store, reduce, disk, compute, warm)
}


def main() -> None:
    """Answer requests until the input ends."""
    # Standard output is for answers only, but libraries print to it too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = REQUESTS[request.pop("do")](**request)
        except (OSError, RuntimeError, ImportError) as error:
            answer = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
