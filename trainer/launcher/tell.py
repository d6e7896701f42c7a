"""Sends notices from a host to the coordinator, which notifies people."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from trainer.contract.notify import KINDS
from trainer.group.messages import LOST, Notice, Report, encode, name_agent
from trainer.launcher.errors import LaunchError
from trainer.launcher.settings import parse_endpoint, read_variable


def notify(environ: Mapping[str, str], kind: str, message: str, code: int | None = None) -> None:
    """Send a notice to the coordinator, which notifies people if the job has receivers.

    Without a coordinator, return after a short time.
    """
    host = environ.get("KIT_HOST") or socket.gethostname()
    agent = name_agent(host, time.time_ns())
    notice = Notice(kind, f"{kind}-{agent}", message, (host,), code)
    line = encode(Report(agent, host, 0, notice=notice))
    with suppress(OSError, LaunchError):
        place = parse_endpoint(environ.get("KIT_RENDEZVOUS", ""))
        with socket.create_connection(place, LOST) as connection:
            connection.sendall(line)
            connection.recv(1)  # It closes the connection once it has read the line.


def tell_coordinator() -> None:
    """Notify people of the kind and with the message of the arguments."""
    kind, message = (*sys.argv[2:4], "", "")[:2]
    if kind not in KINDS or not message:
        raise LaunchError(f"notify: give a kind and a message; the kinds are {', '.join(KINDS)}")
    read_variable(os.environ, "KIT_RENDEZVOUS")
    notify(os.environ, kind, message)
