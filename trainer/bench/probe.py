"""Measures one host and its links. `kit bench` runs this file in a container on each host.

Like launch.py it is one file that needs no other file of the trainer, so that it runs in any image
with Python; all measurements except links and disks also need PyTorch. Each line of standard input
is a request: a JSON object whose `do` names a function of `REQUESTS` and whose other keys are its
arguments. Each line of standard output is the answer, or `{"error": "…"}`. The program ends at the
end of its standard input.

Units are bytes, seconds and bits per second.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

CHUNK = 2**20
PATIENCE = 30.0
"""Timeout for answers of another host, in seconds."""
CONNECT = 10.0
"""Timeout for connections, in seconds: TCP tries three times in seven."""
PING = b"p"
STREAM = b"s"
MOST_READ = 2 * 2**30
WRITTEN = 256 * 2**20
MATRIX = 8192
"""Rows and columns of a product: large enough for the tensor cores of present GPUs."""
COPIED = 2**30
CPU_WINDOWS = 5

_stores: dict[int, Any] = {}
"""The rendezvous stores that this process serves, by port."""


def serve(address: str) -> dict[str, Any]:
    """Answer the pings and streams of other hosts at `address`, until this process ends."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return {"port": listener.getsockname()[1]}


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        connection.settimeout(PATIENCE)
        try:
            if connection.recv(1) == PING:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while byte := connection.recv(1):
                    connection.sendall(byte)
                return
            received, began, ended = _receive(connection)
            connection.sendall(struct.pack("!Qd", received, ended - began))
        except OSError:
            return  # The other side gets the same error.


def _receive(connection: socket.socket) -> tuple[int, float, float]:
    """Read a stream to its end; the first chunk starts the clock and is not counted."""
    buffer = bytearray(CHUNK)
    connection.recv_into(buffer)
    began = ended = time.perf_counter()
    received = 0
    while number := connection.recv_into(buffer):
        received += number
        ended = time.perf_counter()
    return received, began, ended


def ping(to: list[Any], count: int) -> dict[str, Any]:
    """Measure the median round trip of one byte over TCP."""
    with socket.create_connection((to[0], to[1]), CONNECT) as connection:
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PING)
        trips = []
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(PING)
            if not connection.recv(1):
                raise ConnectionError("the other host closed the connection")
            trips.append(time.perf_counter() - began)
    return {"round_trip": statistics.median(trips)}


def stream(to: list[Any], seconds: float, streams: int) -> dict[str, Any]:
    """Send for some seconds; return the bits per second that the other host received."""
    speeds = [0.0] * streams
    faults: list[OSError] = []

    def send(number: int) -> None:
        try:
            speeds[number] = _send(to, seconds)
        except OSError as error:
            faults.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return {"speed": sum(speeds)}


def _send(to: list[Any], seconds: float) -> float:
    chunk = bytes(CHUNK)
    with socket.create_connection((to[0], to[1]), CONNECT) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(STREAM)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(16, socket.MSG_WAITALL)
    if len(answer) < 16:
        raise ConnectionError("the other host did not say what it received")
    received, taken = struct.unpack("!Qd", answer)
    return float(received * 8 / taken) if taken else 0.0


def store(address: str) -> dict[str, Any]:
    """Serve a rendezvous store for `reduce`."""
    import torch.distributed

    dist: Any = torch.distributed
    # Without a number of processes the store does not wait for them.
    made = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, use_libuv=True)
    _stores[made.port] = made
    return {"port": made.port}


def reduce(
    at: list[Any], name: str, rank: int, size: int, address: str, length: int, times: int
) -> dict[str, Any]:
    """All-reduce float32 values with the other members of the group `name`.

    Return the library, the bytes, and the median seconds; a first all-reduce opens connections.
    """
    import torch.distributed

    dist: Any = torch.distributed
    timeout = timedelta(seconds=PATIENCE)
    inner = _stores.get(at[1]) or dist.TCPStore(at[0], at[1], is_master=False, timeout=timeout)
    group, device, library = _group(dist.PrefixStore(name, inner), rank, size, address, timeout)
    values = torch.ones(length // 4, device=device)
    taken = []
    for number in range(times + 1):
        group.allreduce([values[:1]]).wait()  # All begin at the same time.
        _finish(device)
        began = time.perf_counter()
        group.allreduce([values]).wait()
        _finish(device)
        if number:
            taken.append(time.perf_counter() - began)
        values.fill_(1.0)
    return {"library": library, "bytes": len(values) * 4, "seconds": statistics.median(taken)}


def _group(
    store: Any, rank: int, size: int, address: str, timeout: timedelta
) -> tuple[Any, str, str]:
    """Return a process group, the device of its values, and the name of its library."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available() and dist.is_nccl_available():
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_of(address)}")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options), "cuda", "nccl"
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timeout
    options._devices = [kind.create_device(hostname=address)]
    return kind(store, rank, size, options), "cpu", "gloo"


def _finish(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address, of which it may have several.

    Raises OSError if none has it.
    """
    ((family, *_, place), *_) = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    start, length = (4, 4) if family == socket.AF_INET else (8, 16)  # netinet/in.h
    number = socket.inet_pton(family, str(place[0]))
    libc, first = ctypes.CDLL(None), ctypes.POINTER(_Address)()
    entry = first if libc.getifaddrs(ctypes.byref(first)) == 0 else None
    while entry:
        one = entry.contents
        own = ctypes.c_ushort.from_address(one.address).value if one.address else 0
        if own == family and ctypes.string_at(one.address + start, length) == number:
            return str(one.name.decode())
        entry = one.next
    raise OSError(f"no interface has the address {address}")


class _Address(ctypes.Structure):
    """An address of an interface, as a link of the list of getifaddrs(3)."""


_Address._fields_ = [
    ("next", ctypes.POINTER(_Address)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    *((rest, ctypes.c_void_p) for rest in ("netmask", "other_end", "data")),
]


def disk(folder: str, seconds: float) -> dict[str, Any]:
    """Read the files of a folder for some seconds, without the kernel's cache.

    If it holds less than 16 MiB, a file is written, read and removed in the container.
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
    _finish("cuda")
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            work()
        _finish("cuda")
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
