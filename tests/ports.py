"""Ports for tests that run side by side."""

from __future__ import annotations

import secrets
import socket


def free_port(size: int = 1) -> int:
    """The first of `size` free ports in a row, which no other process of the tests gets."""
    while True:
        port = secrets.choice(range(10_000, 32_000))
        if all(_take(each) for each in range(port, port + size)):
            return port


def _take(port: int) -> bool:
    """Take a port until this process ends, if it is free.

    It is below those that the kernel gives to connections: no other program takes it meanwhile.
    """
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0kit-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        return False
    taken.detach()
    return True
