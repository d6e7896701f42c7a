"""Runs in a container of a job's image and does what kit asks: a line of JSON for each request.

It is sent there as text and needs only the standard library of Python 3.10. It ends when its input
ends, or after LIFE seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIFE = 180
CONNECT = 3.0
"""Seconds for a TCP connection; a SYN is repeated after 1."""
COPIES = 3
"""UDP may lose a packet."""
QUIET = bytes(8)
"""The beginning of each test packet: VXLAN drops it, as no flag is set (RFC 7348, section 5)."""
BULK = 256 * 1024
"""Bytes of an exchange on the overlay: packets of full size."""
GOSSIP = 12.0
"""Seconds until a new container is known on all hosts, at the most."""
MOST_FOLDERS = 20_000
SO_ATTACH_FILTER = 26
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
"""Sets DF and ignores the MTU that the kernel has learned (ip(7))."""

Request = dict[str, Any]
heard: set[tuple[str, int, int]] = set()
"""Sender, port and size of packets that have passed this host's firewall."""
listeners: list[socket.socket] = []


def hello(_request: Request) -> Request:
    """Return the limits and the number of GPUs of this container."""
    shm = os.statvfs("/dev/shm")
    return {
        "shm": shm.f_blocks * shm.f_frsize,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
    }


def listen(request: Request) -> Request:
    """Listen on TCP ports that are free, and watch UDP; return the ports in use."""
    busy = []
    for port in request["tcp"]:
        try:
            server = socket.create_server(("", port), backlog=128)
        except OSError:
            busy.append(port)
            continue
        listeners.append(server)
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
    error = ""
    if request["udp"]:
        try:
            _watch(request["token"], request["udp"])
        except OSError as failure:
            error = str(failure)
    return {"busy": busy, "udp_error": error}


def _serve(server: socket.socket) -> None:
    """Send back what clients send."""
    while True:
        client, _ = server.accept()
        threading.Thread(target=_echo, args=(client,), daemon=True).start()


def _echo(client: socket.socket) -> None:
    with client, contextlib.suppress(OSError):
        client.settimeout(CONNECT)
        while data := client.recv(65536):
            client.sendall(data)


def _watch(token: int, ports: list[int]) -> None:
    """Receive UDP packets to ports of other programs: a raw socket gets copies after the firewall.

    In a Swarm, Docker holds 7946 and the kernel 4789: no other program can listen there.
    AF_PACKET would also receive packets that the firewall drops later.
    """
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    # Only packets with our token: a running job's overlay must not be copied here. Classic BPF:
    # X = length of the IP header; A = word at X + 16; return all if A is the token, else nothing.
    steps = [(0xB1, 0, 0, 0), (0x40, 0, 0, 16), (0x15, 0, 1, token), (6, 0, 0, 65535), (6, 0, 0, 0)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in steps))
    program = struct.pack("HL", len(steps), ctypes.addressof(code))
    raw.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    listeners.append(raw)
    threading.Thread(target=_hear, args=(raw, ports), daemon=True).start()


def _hear(raw: socket.socket, ports: list[int]) -> None:
    while True:
        packet = raw.recv(65535)
        header = (packet[0] & 15) * 4
        port = struct.unpack_from("!H", packet, header + 2)[0]
        if port in ports:
            name = packet[header + 20 :].split(b"\0", 1)[0]
            heard.add((name.decode(errors="replace"), port, len(packet)))


def send(request: Request) -> Request:
    """Try each target's TCP ports, and send UDP packets to it."""
    with ThreadPoolExecutor(64) as pool:
        results = pool.map(lambda each: (each["host"], _try(request, each)), request["targets"])
        return {"targets": dict(results)}


def _try(request: Request, target: Request) -> Request:
    address = target["address"]
    udp = [(int(port), size) for port, sizes in target["udp"].items() for size in sizes]
    return {
        "tcp": {str(port): _connect(address, port) for port in target["tcp"]},
        "udp": {f"{port}/{size}": _packets(request, address, port, size) for port, size in udp},
        "source": _source(address),
    }


def _source(address: str) -> str:
    """Return the source address of packets to a target."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0])
    except OSError as error:
        return str(error)


def _connect(address: str, port: int) -> str:
    error = ""
    for _ in range(2):
        try:
            socket.create_connection((address, port), CONNECT).close()
        except OSError as failure:
            error = str(failure) or type(failure).__name__
        else:
            return ""
    return error


def _packets(request: Request, address: str, port: int, size: int) -> str:
    """Send packets of `size` bytes with their IP header, 0 for the smallest; return the error."""
    body = QUIET + struct.pack("!I", request["token"]) + request["me"].encode() + b"\0"
    error = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        for copy in range(COPIES):
            time.sleep(0.05 * bool(copy))
            try:
                sock.sendto(body.ljust(size - 28, b"\0"), (address, port))
            except OSError as failure:
                error = str(failure)
    return error


def report(_request: Request) -> Request:
    """Return the packets that were heard."""
    time.sleep(0.3)
    return {"heard": sorted(heard)}


def exchange(request: Request) -> Request:
    """Exchange data with the agents on the overlay network, by their names."""
    port = request["port"]
    with ThreadPoolExecutor(32) as pool:
        results = pool.map(
            lambda each: (each["host"], _exchange(each["name"], port)), request["targets"]
        )
        return {"targets": dict(results)}


def _exchange(name: str, port: int) -> str:
    """Return the error of an exchange with a target, or "".

    Names and tunnels of a new container spread by gossip; that may take seconds.
    """
    deadline = time.monotonic() + GOSSIP
    while True:
        error = _exchange_once(name, port)
        if not error or time.monotonic() > deadline:
            return error
        time.sleep(0.3)


def _exchange_once(name: str, port: int) -> str:
    try:
        address = socket.gethostbyname(name)
    except OSError as failure:
        return f"the name {name} does not resolve ({failure})"
    try:
        with socket.create_connection((address, port), CONNECT) as sock:
            sock.settimeout(CONNECT)
            threading.Thread(target=_pour, args=(sock,), daemon=True).start()
            left = BULK
            while left > 0:
                data = sock.recv(65536)
                if not data:
                    return f"the connection to {address} broke"
                left -= len(data)
    except OSError as failure:
        return f"no data from {address}: {failure}"
    return ""


def _pour(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(bytes(BULK))


def reach(request: Request) -> Request:
    """Connect to services on the overlay network by their names."""
    return {"targets": {each["host"]: _reach(each) for each in request["targets"]}}


def _reach(target: Request) -> str:
    try:
        return _connect(socket.gethostbyname(target["name"]), target["port"])
    except OSError as error:
        return f"the name {target['name']} does not resolve ({error})"


def data(request: Request) -> Request:
    """Return listings of folders, and of the files of a training's data set."""
    folders = {each: _listing(_walk(each), each) for each in request["folders"]}
    return {"folders": folders, "sets": [_complete(each) for each in request["documents"]]}


def _walk(folder: str) -> Iterator[Path]:
    for number, (place, _, names) in enumerate(os.walk(folder)):
        if number < MOST_FOLDERS:
            yield from (Path(place, name) for name in names)


def _listing(paths: Iterable[Path], folder: str) -> Request:
    """Return the number of files, their bytes, and a hash of names and sizes."""
    listing = []
    for path in paths:
        with contextlib.suppress(OSError):
            listing.append((os.path.relpath(path, folder), path.stat().st_size))
    listing.sort()
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:12]
    return {"files": len(listing), "bytes": sum(size for _, size in listing), "digest": digest}


def _complete(document: str) -> Request:
    """Look for the files of a data set with the image's trainer, as at the start of a job."""
    job, root = Path("/tmp/job.json"), os.environ.get("KIT_DATA", "/data")
    job.write_text(document)
    sys.path.insert(0, "/opt/kit")
    try:
        jobs = importlib.import_module("trainer.core.job")
        files = importlib.import_module("trainer.data.files")
    except ImportError:  # Not kit's image.
        return {}
    try:
        paths = files.find_files(jobs.load_job(job).train, Path(root))
    except files.DataMissingError as error:
        return {"missing": str(error)}
    return {"missing": "", **_listing(paths, root)}


def torch(_request: Request) -> Request:
    """Return torch's version, its CUDA, and the architectures that it was built for."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {"torch": "", "cuda": "", "archs": []}
    facts: Request = {}
    # Without the import, which takes seconds: a CPU build needs no more.
    exec(Path(spec.origin).with_name("version.py").read_text(), facts)
    archs: list[str] = []
    if facts.get("cuda"):
        module = importlib.import_module("torch")
        # Without a GPU get_arch_list() is empty. Its source is this function.
        flags = getattr(module._C, "_cuda_getArchFlags", None)
        archs = (flags() or "").split() if flags else module.cuda.get_arch_list()
    return {"torch": facts.get("__version__", ""), "cuda": facts.get("cuda") or "", "archs": archs}


REQUESTS: dict[str, Callable[[Request], Request]] = {
    each.__name__: each for each in (hello, listen, send, report, exchange, reach, data, torch)
}


def main() -> None:
    """Answer each line of the input."""
    signal.alarm(LIFE)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = REQUESTS[request["do"]](request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201 (kit reads it)


if __name__ == "__main__":
    main()
