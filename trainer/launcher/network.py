"""This host's interface and ports, and the connection to the coordinator."""

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say
from trainer.launcher.settings import Settings, endpoint_text
from trainer.launcher.waiting import until_answered


def find_rendezvous(endpoint: tuple[str, int]) -> str:
    """Connect to the store; return this host's local address. OSError: try again later."""
    host, port = endpoint
    found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    # A host may have an IPv4 and an IPv6 address.
    family = min(entry[0] for entry in found)
    addresses = sorted({str(entry[4][0]) for entry in found if entry[0] == family})
    if len(addresses) > 1:
        # Each agent would pick one at random, and torchrun would wait forever without a message.
        several = f"KIT_RENDEZVOUS: {host} has {len(addresses)} addresses ({', '.join(addresses)})"
        raise LaunchError(f"{several}; name one service with a single replica")
    with socket.create_connection((addresses[0], port), timeout=5) as connection:
        return str(connection.getsockname()[0])


def wait_for_rendezvous(settings: Settings) -> str:
    """Wait until the store answers; return this host's local address of the connection."""
    return until_answered(
        partial(find_rendezvous, settings.rendezvous),
        ("the coordinator", endpoint_text(settings.rendezvous), "nothing answered at"),
        settings.wait,
        "is the service rendezvous running, and on the same network?",
        "rendezvous",
    )


def pick_interface(address: str, addresses: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The interface that has `address`; the user's variable for gloo or NCCL has precedence."""
    if chosen := environ.get("GLOO_SOCKET_IFNAME"):
        return chosen
    names = [addresses[address]] if address in addresses else []
    if chosen := environ.get("NCCL_SOCKET_IFNAME"):
        named = chosen.lstrip("^=").partition(",")[0].partition(":")[0]
        taken = [name for name in addresses.values() if nccl_takes(chosen, name)] or [named]
        names = [name for name in names if name in taken] or taken
    if not names:
        lost = f"no interface has the address {address} that leads to the coordinator"
        fix = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
        raise LaunchError(f"{lost}; {fix}", FAILURE, "rendezvous")
    return names[0]


def nccl_takes(chosen: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME matches an interface; gloo's variable accepts whole names only.

    `eth` is a prefix, `=eth1` an exact name, `^docker` excludes (ncclFindInterfaces).
    """
    without, chosen = chosen.startswith("^"), chosen.removeprefix("^")
    exactly, chosen = chosen.startswith("="), chosen.removeprefix("=")
    words = [word.partition(":")[0] for word in chosen.split(",") if word]
    found = any(name == word or (not exactly and name.startswith(word)) for word in words)
    return found is not without


def hold_port(address: str) -> socket.socket:
    """A socket that holds a free port for a server that asks for it, with SO_REUSEADDR as here."""
    held = socket.socket(family_of(address))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))  # It does not listen: the kernel gives its port to no others.
    return held


RESOLVED = 10.0  # Seconds within which a container finds its own name in Docker's DNS.


def own_address(names: Sequence[str]) -> str:
    """The address of this host among those of `names`, to listen only at this one.

    If there is none, as behind a NAT, log this and return the address of all interfaces.
    """
    deadline = time.monotonic() + RESOLVED
    while True:
        for name in names:
            family = family_of(name)
            with suppress(OSError):
                for entry in socket.getaddrinfo(name, 0, family, socket.SOCK_STREAM):
                    with suppress(OSError), socket.create_server(entry[4], family=family) as own:
                        return str(own.getsockname()[0])
        if time.monotonic() > deadline:
            say(f"listens on every interface: {', '.join(names)} is no address of this host")
            return "0.0.0.0"
        time.sleep(0.2)


def family_of(name: str) -> socket.AddressFamily:
    """The family of an address; IPv4 for a name."""
    return socket.AF_INET6 if ":" in name else socket.AF_INET


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address, before it is passed to others; raises LaunchError."""
    try:
        return socket.create_server((address, port), family=family_of(address))
    except OSError as error:
        reason = str(error).splitlines()[0]
        advice = "end what uses it, or give the job another port: `rendezvous: {port: …}`"
        message = f"port {port} cannot be served ({reason}); {advice}"
        raise LaunchError(message, FAILURE, "rendezvous") from error
