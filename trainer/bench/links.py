"""Measures the links of a host: round trips, streams, and all-reduces with other hosts."""

import os
import socket
import statistics
import struct
import threading
import time
from datetime import timedelta
from typing import Any

from trainer.launcher.interfaces import interface_addresses

CHUNK = 2**20
PATIENCE = 30.0
"""Timeout for answers of another host, in seconds."""
CONNECT = 10.0
"""Timeout for connections, in seconds: TCP sends three packets in the first seven."""
PING = b"p"
STREAM = b"s"
_stores: dict[int, Any] = {}
"""The rendezvous stores that this process serves, by port."""


def serve(address: str, interfaces: list[str]) -> dict[str, Any]:
    """Answer the pings and streams of other hosts, until this process ends.

    Listen at `address` or, if `interfaces` are given, at the first IPv4 address of each.
    """
    own = {name: at for at, name in reversed(interface_addresses().items()) if ":" not in at}
    if missing := [name for name in interfaces if name not in own]:
        raise OSError(f"no IPv4 address on interface {', '.join(missing)}")
    places = [own[name] for name in interfaces] or [address]
    return {"places": [[place, _listen(place)] for place in places]}


def _listen(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


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


def stream(to: list[list[Any]], seconds: float, streams: int) -> dict[str, Any]:
    """Send to all endpoints for some seconds; return the bits per second that they received.

    `streams` is the number of streams, spread evenly over the endpoints.
    """
    speeds = [0.0] * streams
    faults: list[OSError] = []

    def send(number: int) -> None:
        try:
            speeds[number] = _send(to[number % len(to)], seconds)
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
        finish(device)
        began = time.perf_counter()
        group.allreduce([values]).wait()
        finish(device)
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


def finish(device: str) -> None:
    """Wait for the work of a device."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address; raises OSError if none has it."""
    ((*_, place), *_) = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    if name := interface_addresses().get(str(place[0])):
        return name
    raise OSError(f"no interface has the address {address}")
