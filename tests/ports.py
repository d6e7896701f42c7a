"""Ports for tests that run side by side."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port below those that the kernel gives to connections: nobody takes it meanwhile."""
    while True:
        port = secrets.choice(range(10_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
