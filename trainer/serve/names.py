"""Checks the Host and Origin of requests. Standard library only.

A page of another website can send requests to a server that only its visitor can reach, in two
ways: with the website's Origin or, if the website's name resolves to the server's address, with the
website's name as Host (DNS rebinding). Addresses, and names that cannot be registered, are safe.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

PRIVATE = (".localhost", ".local", ".internal", ".home.arpa")  # RFC 6761, 6762, 8375; ICANN 2024.
EVERY = "*"


def allowed_host(host: str, names: Collection[str]) -> bool:
    """Whether a server with the extra names `names` accepts `host`, a Host header."""
    name = name_of(f"//{host}")
    known = bool(name) and (name in names or "." not in name or name.endswith(PRIVATE))
    return EVERY in names or known or is_address(name)


def allowed_origin(origin: str, host: str, names: Collection[str]) -> bool:
    """Whether a page of `origin`, an Origin header, may send requests to the server `host`.

    Scheme and port are not compared: a server behind a proxy does not know its own.
    """
    name = name_of(origin)
    own = urlsplit(origin).netloc.lower() == host.lower()
    return own or EVERY in names or (name in names and bool(name))


def name_of(url: str) -> str:
    """Return the name or address in a URL, without brackets; empty if it has none."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether a text is an address, not a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
