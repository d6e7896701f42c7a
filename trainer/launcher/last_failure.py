"""The failure of the round before, as the rendezvous tells it."""

import json
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from trainer.launcher.errors import MISTAKE, LaunchError
from trainer.launcher.output import emit, say
from trainer.launcher.reports import LOST, Report
from trainer.launcher.settings import Settings, read_nnodes


def given_up(order: Mapping[str, Any], host: str) -> LaunchError | None:
    """The failure after which the rendezvous lets a host not begin again."""
    failure = order.get("failure")
    if order["do"] != "fail" or not failure:
        return None
    where, place = failure["host"], (failure.get("rank"), failure.get("exit_code"))
    other = "" if where == host else where
    return LaunchError(failure["message"], MISTAKE, "input", *place, host=other)


def ask_what_has_failed(settings: Settings) -> None:
    """Ask the rendezvous why the run has failed before: the log of a new container has no past.

    Raises LaunchError if no restart helps: then nothing is prepared.
    """
    least, most, spares = read_nnodes(os.environ)
    asks = f"{settings.host}-asks-{secrets.token_hex(4)}"
    report = Report(asks, settings.host, "", [0, 0], least, most, "starts", spares=spares)
    order: dict[str, Any] = {}
    # It may start later: it is waited for when it is needed.
    opened = partial(socket.create_connection, settings.rendezvous, LOST)
    with suppress(OSError, ValueError), opened() as connection:
        connection.sendall(json.dumps(report).encode() + b"\n")
        order = json.loads(connection.makefile().readline())
    if not (failure := order.get("failure")):
        return
    if wrong := given_up(order, settings.host):
        raise wrong
    emit("failed", **{key: each for key, each in failure.items() if key != "ran"})
    say(f"the round before has failed: {failure['host']}: {failure['message']}")
