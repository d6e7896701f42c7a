"""A port of this machine that leads into a container, with real sockets and processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from kit.commands import forward as command
from kit.errors import InputError
from kit.hosts import forward
from kit.model import EngineName
from kit.targets.lower import platform_of
from tests.sandbox import INVENTORY, Project
from tests.trainer.hosts import wait_until


class Echo:
    """A server that answers everything that it has read, once the other side has ended."""

    def __init__(self) -> None:
        self._socket = socket.create_server((forward.HERE, 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._socket.accept()[0],)).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            read = b""
            while block := connection.recv(65536):
                read += block
            connection.sendall(read)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


ENDLESS = ["sh", "-c", "echo $$; exec yes"]
PROGRAM = """
import os, sys
from contextlib import suppress
from kit.hosts import forward

def say(text):
    print(text, file=sys.stderr, flush=True)

def ready(port):
    print(port, flush=True)

with suppress(KeyboardInterrupt):
    forward.serve(0, sys.argv[1:], os.environ, say, ready)
"""


@contextmanager
def forwarded(command: Sequence[str], said: list[str]) -> Iterator[int]:
    """Forward a port here to a command until Ctrl-C; what is said is collected in `said`."""
    program = [sys.executable, "-c", PROGRAM, *command]
    process = subprocess.Popen(
        # A shell's background processes ignore Ctrl-C, and so do their children.
        ["env", "--default-signal=INT", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    listening = threading.Thread(target=_collect, args=(process.stderr, said))
    listening.start()
    try:
        yield int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        listening.join(30)
        process.stdout.close()
        process.stderr.close()


def _collect(lines: IO[str], said: list[str]) -> None:
    said.extend(line.rstrip("\n") for line in lines)


def to(port: int) -> list[str]:
    """The program that connects with a port in a container."""
    return [sys.executable, *forward.words(port)[1:]]


def exchange(port: int, content: bytes) -> bytes:
    with socket.create_connection((forward.HERE, port), 30) as client:
        sender = threading.Thread(target=_send, args=(client, content))
        sender.start()
        read = b""
        while block := client.recv(65536):
            read += block
        sender.join()
    return read


def _send(client: socket.socket, content: bytes) -> None:
    client.sendall(content)
    client.shutdown(socket.SHUT_WR)


def test_connections_carry_all_bytes_at_the_same_time() -> None:
    echo, said = Echo(), list[str]()
    contents = [os.urandom(3_000_000), b"", bytes(range(256))]
    answers: dict[int, bytes] = {}
    with forwarded(to(echo.port), said) as port:
        threads = [
            threading.Thread(
                target=lambda i, c: answers.update({i: exchange(port, c)}), args=(i, content)
            )
            for i, content in enumerate(contents)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    echo.close()
    assert [answers[i] for i in range(len(contents))] == contents
    assert said == []


def test_a_port_without_a_program_is_told_and_others_go_on() -> None:
    with socket.create_server((forward.HERE, 0)) as free:
        port = free.getsockname()[1]
    said: list[str] = []
    with forwarded(to(port), said) as here:
        assert exchange(here, b"x") == b""
        assert exchange(here, b"x") == b""
        # The connection ends a moment before the program that has its reason.
        wait_until(lambda: len(said) == 2, "both reasons")
    assert said == ["a connection failed: Connection refused"] * 2


def test_a_port_that_is_in_use_here() -> None:
    with socket.create_server((forward.HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of this machine cannot be opened"):
            forward.serve(port, ["true"], {}, print, lambda _: None)


def test_ctrl_c_ends_connections_without_a_word() -> None:
    """One whose client does not read, and some that have just ended."""
    echo, said = Echo(), list[str]()
    with forwarded(ENDLESS, said) as port:
        client = socket.create_connection((forward.HERE, port), 30)
        process = int(client.recv(100).split()[0])
    client.close()
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "the end of the command")
    for _ in range(3):
        with forwarded(to(echo.port), said) as port:
            assert exchange(port, b"x") == b"x"
    echo.close()
    assert said == []


def test_a_client_that_goes_away_ends_its_command_without_a_word() -> None:
    said: list[str] = []
    with forwarded(ENDLESS, said) as port:
        with socket.create_connection((forward.HERE, port), 30) as client:
            process = int(client.recv(100).split()[0])
        wait_until(lambda: not Path(f"/proc/{process}").exists(), "the end of the command")
    assert said == []


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("6006", (6006, 6006)),
        ("8006:6006", (8006, 6006)),
        ("8000:", (8000, 3000)),
        (None, (3000,) * 2),
    ],
)
def test_the_port_here_and_there(text: str | None, ports: tuple[int, int]) -> None:
    assert command.ports(text, 3000) == ports


@pytest.mark.parametrize("text", ["a:b", "70000", "0", "1:2:3", ":"])
def test_no_ports(text: str) -> None:
    with pytest.raises(InputError, match=f"{text} is not a port"):
        command.ports(text, None)


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_services_have_a_name_and_a_host(project: Project, engine: str) -> None:
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    project.write(f"{inventory}monitoring: {{}}\n")
    services = platform_of(project.plan(), EngineName(engine))
    assert {name: (host.name, port) for name, (host, port) in services.items()} == {
        "grafana": ("pc1", 3000)
    }


def test_an_unknown_name_lists_what_there_is(project: Project) -> None:
    local = INVENTORY.replace("engine: swarm", "engine: local")
    project.write(local).rendered()
    result = project.kit("forward", "grafana")
    assert (result.status, "there is no job or service grafana" in result.err) == (2, True)
