"""Which Host and Origin a server answers to. Standard library only.

A page of another website can send requests to a server that only its visitor reaches, in two ways:
as that website (its Origin tells) or, after its name was given the server's address, as if it were
the server itself (DNS rebinding: the Host is then the website's name). An address cannot be taken
over like that, nor can a name that nobody can register.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

PRIVATE = (".localhost", ".local", ".internal", ".home.arpa")  # RFC 6761, 6762, 8375; ICANN 2024.
EVERY = "*"


def allowed_host(host: str, names: Collection[str]) -> bool:
    """Whether a server that is called `names` besides may be asked as `host`, a Host header."""
    name = name_of(f"//{host}")
    known = bool(name) and (name in names or "." not in name or name.endswith(PRIVATE))
    return EVERY in names or known or is_address(name)


def allowed_origin(origin: str, host: str, names: Collection[str]) -> bool:
    """Whether a page of `origin`, an Origin header, may ask the server that it knows as `host`.

    Neither its own scheme nor its own port is known to a server behind a proxy.
    """
    name = name_of(origin)
    own = urlsplit(origin).netloc.lower() == host.lower()
    return own or EVERY in names or (name in names and bool(name))


def name_of(url: str) -> str:
    """The name or address in a URL, without brackets; empty where it has none."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether it is an address and no name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
