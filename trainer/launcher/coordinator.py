"""The coordinators of a built-in training and of a script's rounds."""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

from trainer.contract.exits import NOT_OVER
from trainer.group.decisions import Decisions
from trainer.group.notices import Notices
from trainer.group.server import Server
from trainer.launcher.courier import LAST_TRIES, Courier
from trainer.launcher.errors import MISTAKE
from trainer.launcher.network import listen, own_address
from trainer.launcher.output import say
from trainer.launcher.process import raise_open_files, stay_unprivileged
from trainer.launcher.rounds import Rounds
from trainer.launcher.settings import endpoint_text, parse_endpoint, read_nnodes, read_variable

CHANCES = 10**6  # Range of random numbers that make generations unique if clocks differ.
chance = partial(random.randrange, CHANCES)


def coordinate() -> int:
    """Serve the coordinator of a built-in training; return the exit code."""
    hosts = read_nnodes(os.environ)
    notices = Notices(clock=time.monotonic)
    decisions = Decisions(time.monotonic, *hosts, time.time, chance, say, notices)
    return serve(decisions, partial(is_final, decisions))


def is_final(decisions: Decisions) -> bool:
    """Return whether no host returns: the job is done, or ended by its limit or a mistake."""
    end = decisions.finished
    halt = end.halt if end else None
    return bool(decisions.ends or (end and (halt is None or halt.code == MISTAKE)))


def serve_rendezvous() -> int:
    """Serve the coordinator of a script; return the exit code."""
    notices = Notices(clock=time.monotonic)
    rounds = Rounds(time.monotonic, today=time.time, chance=chance, say=say, notices=notices)
    return serve(rounds, lambda: rounds.final)


def serve(decisions: Decisions, final: Callable[[], bool]) -> int:
    """Serve at KIT_ADDRESS, or at the address of the endpoint, until the run is over or a signal.

    Return the exit code: NOT_OVER unless the run is `final`. A signal also ends it when its host is
    drained while the training continues.
    """
    stay_unprivileged()
    raise_open_files()  # Each host holds a connection.
    host, port = parse_endpoint(read_variable(os.environ, "KIT_RENDEZVOUS"))
    address = os.environ.get("KIT_ADDRESS") or own_address([host])
    listener = listen(address, port)
    begun = partial(say, f"serves the coordinator on {endpoint_text((address, port))}")
    received = asyncio.run(serve_and_notify(decisions, listener, begun))
    reason = signal.Signals(received).name if received else "the end of its run"
    say(f"ends the coordinator on {reason}")
    return 0 if final() else NOT_OVER


async def serve_and_notify(
    decisions: Decisions, listener: socket.socket, begun: Callable[[], object]
) -> int:
    """Serve, and send notifications meanwhile; return the signal that ends it, or 0."""
    courier = Courier(os.environ, decisions.notices)
    courier.start()
    received = 0
    try:
        received = await Server(decisions, courier.busy).serve(listener, begun)
    finally:
        await courier.end(LAST_TRIES if received else 0.0)
    return received
