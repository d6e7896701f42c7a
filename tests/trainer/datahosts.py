"""Stand-in hosts for the tests of data sets: real servers and agents on 127.0.0.1."""

from __future__ import annotations

import http.client
import json
import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, Task, hosts, wait_until
from trainer.datasets import store
from trainer.datasets.layout import Place
from trainer.datasets.manifest import Manifest

NAME = "numbers"


class Socket(http.client.HTTPConnection):
    """HTTP on an agent's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


@dataclass
class Agent:
    """An agent, its folder and its ports."""

    task: Task
    cache: Path
    port: int

    @contextmanager
    def use(self, name: str = NAME, version: int | None = 1, who: str = "job") -> Iterator[Any]:
        """Use a data set: yields all lines up to the one that says ready or failed."""
        connection = self.ask(name, version, who)
        try:
            yield read_lines(connection)
        finally:
            connection.close()

    def ask(self, name: str = NAME, version: int | None = 1, who: str = "job") -> Any:
        """Ask for a data set; return the connection."""
        wait_until((self.cache / "agent.sock").exists, "the agent's socket", 30)
        connection = Socket(self.cache / "agent.sock")
        wanted = {"name": name} | ({"version": version} if version else {})
        connection.request("POST", "/use", json.dumps({"who": who, "data": [wanted]}))
        return connection

    def get(self, method: str, path: str) -> tuple[int, Any]:
        """One request, and its answer."""
        wait_until((self.cache / "agent.sock").exists, "the agent's socket", 30)
        connection = Socket(self.cache / "agent.sock")
        connection.request(method, path)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content)

    def held(self, name: str = NAME) -> Any:
        """What its status says about a data set, or None."""
        held = self.get("GET", "/status")[1]["held"]
        return next((each for each in held if each["name"] == name), None)


def read_lines(connection: Any) -> list[Any]:
    """The lines of an answer to /use up to the last state."""
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    lines = []
    while line := answer.readline():
        lines.append(json.loads(line))
        if lines[-1]["state"] in ("ready", "failed"):
            break
    return lines


@dataclass
class DataHosts:
    """A store, its server, and agents, `at` an address of this machine."""

    local: Hosts
    folder: Path
    server_port: int = field(default_factory=free_port)
    peers: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    at: str = "127.0.0.1"

    def endpoint(self, port: int) -> str:
        return f"[{self.at}]:{port}" if ":" in self.at else f"{self.at}:{port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def url(self) -> str:
        return f"http://{self.endpoint(self.server_port)}"

    def add(self, size: int, name: str = NAME, parts: int = 3) -> Manifest:
        """Add a version of random content."""
        source = self.folder / f"source-{name}"
        source.mkdir(exist_ok=True)
        draw = random.Random(name)
        for number in range(parts):
            (source / f"part {number}.bin").write_bytes(draw.randbytes(size // parts))
        quiet = store.Reporter(json=True)
        return store.add(self.store, name, str(source), "CC0", None, quiet)

    def serve(self) -> Task:
        """Start the web server of the store."""
        port = str(self.server_port)
        task = self._start("server", "server", "--store", str(self.store), "--port", port)
        task.expect("offers")
        wait_until(lambda: answers(self.server_port), "the server", 30)
        return task

    def agent(self, name: str, *more: str, port: int = 0, url: str = "") -> Agent:
        """Start an agent; the first one with --store is the storage host's."""
        cache = self.folder / name
        port = port or free_port(2)
        words = ["--cache", str(cache), "--server", url or self.url, "--port", str(port)]
        words += ["--address", self.at, "--peers", ",".join(self.peers)]
        task = self._start(name, "agent", *words, *more)
        task.expect("keeps")
        return Agent(task, cache, port)

    def seeder(self, **more: Any) -> Agent:
        """Start the agent of the storage host, and make it known as a peer."""
        agent = self.agent("store", "--store", str(self.store), **more)
        self.peers.append(self.endpoint(agent.port))
        return agent

    def _start(self, name: str, program: str, *words: str) -> Task:
        argv = ["-m", f"trainer.datasets.{program}", *words]
        return self.local.start(name, argv, {"PYTHONPATH": ROOT, **self.variables})

    def equal(self, agent: Agent, name: str = NAME) -> bool:
        """Whether an agent's files have the content of the store's."""
        own, original = Place(agent.cache, name, 1), Place(self.store, name, 1)
        paths = [path for path in original.data.rglob("*") if path.is_file()]
        return own.complete and all(
            (own.data / path.relative_to(original.data)).read_bytes() == path.read_bytes()
            for path in paths
        )


@contextmanager
def data_hosts(folder: Path) -> Iterator[DataHosts]:
    with hosts(folder, cold=True) as local:
        yield DataHosts(local, folder)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Wire:
    """A wire to a port of this machine: may be slow, flip a bit, or be cut."""

    def __init__(self, target: int, rate: float = 0, flip_at: int = 0) -> None:
        """`rate`: bytes a second towards the client; `flip_at`: flips a bit at this byte, once."""
        self.target, self.rate, self.flip_at = target, rate, flip_at
        self.sent, self.flipped = 0, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            threading.Thread(target=self._copy, args=(near, far), daemon=True).start()

    def _copy(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, suppress(OSError, ValueError):
            while True:
                ready = select.select([near, far], [], [], 1)[0]
                if near in ready:
                    content = near.recv(2**16)
                    if not content:
                        return
                    far.sendall(content)
                if far in ready:
                    content = far.recv(2**16)
                    if not content:
                        return
                    near.sendall(self._harm(content))

    def _harm(self, content: bytes) -> bytes:
        before, self.sent = self.sent, self.sent + len(content)
        if self.rate:
            time.sleep(len(content) / self.rate)
        if self.flip_at and not self.flipped and before <= self.flip_at < self.sent:
            self.flipped, changed = True, bytearray(content)
            changed[self.flip_at - before] ^= 1
            return bytes(changed)
        return content

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends = []

    def close(self) -> None:
        self._closed = True
        # While a thread waits in accept, close alone leaves the port open for one connection more.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextmanager
def wire(target: int, rate: float = 0, flip_at: int = 0) -> Iterator[Wire]:
    result = Wire(target, rate, flip_at)
    try:
        yield result
    finally:
        result.close()
