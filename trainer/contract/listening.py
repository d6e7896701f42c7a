"""Listening sockets of services, at one address or at all IPv4 and IPv6 addresses."""

from __future__ import annotations

import socket
from contextlib import suppress


def open_listener(address: str, port: int, backlog: int | None = None) -> socket.socket:
    """Listen at an address, or at all if it is "". Raises OSError if the port cannot be used."""
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled.
            both = socket.AF_INET6
            return socket.create_server(
                ("", port), family=both, backlog=backlog, dualstack_ipv6=True
            )
    return socket.create_server(("", port), backlog=backlog)
