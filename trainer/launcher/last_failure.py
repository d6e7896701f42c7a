"""The failure of a script, as the coordinator sends it to all hosts."""

import os
import socket
import time
from contextlib import suppress

from trainer.group.messages import LOST, Halt, Order, Report, decode, encode, name_agent
from trainer.launcher.errors import MISTAKE, LaunchError
from trainer.launcher.output import emit, say
from trainer.launcher.settings import Settings, read_nnodes


def halt_of(error: LaunchError) -> Halt:
    """Convert a failure on this host for the report to the coordinator."""
    line = str(error).splitlines()[0]
    return Halt(error.kind, line, error.code, "", error.rank, error.exit_code, error.fault)


def error_of(halt: Halt, host: str) -> LaunchError:
    """Convert the failure with which a host ends; a mistake of the user if no restart helps."""
    kind = "input" if halt.code == MISTAKE else halt.kind
    other = "" if halt.host == host else halt.host
    return LaunchError(halt.message, halt.code, kind, halt.rank, halt.exit_code, host=other)


def ask(settings: Settings, report: Report) -> Order:
    """Send a report before this host takes part; return the order; raises OSError, ValueError."""
    with socket.create_connection(settings.rendezvous, LOST) as connection:
        connection.sendall(encode(report))
        return decode(Order, connection.makefile("rb").readline())


def ask_what_has_failed(settings: Settings) -> None:
    """Log the run's previous failure, from the coordinator: the log of a new container lacks it.

    Raises LaunchError if no restart helps, before anything is fetched.
    """
    agent, bounds = name_agent(settings.host, time.time_ns()), read_nnodes(os.environ)
    report = Report(agent, settings.host, 0, starting=True, asks=True, bounds=bounds)
    order = Order()
    # The coordinator may start later: the launcher waits for it when it is needed.
    with suppress(OSError, ValueError):
        order = ask(settings, report)
    if order.halt and order.halt.code == MISTAKE:
        error = error_of(order.halt, settings.host)
        error.known = True
        raise error
    if failure := order.failure:
        emit("failed", **error_of(failure, "").values())
        say(f"the round before has failed: {failure.host}: {failure.message}")
