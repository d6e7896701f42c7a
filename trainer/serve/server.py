"""The server's start and its end, and the limits of what clients may hold.

From here on: routes.py has the routes, inputs.py what they read, batching.py the queue before
the replicas, reload.py the thread that looks for checkpoints.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any

import torch
import uvicorn

from trainer.contract import events
from trainer.core.torch_version import torch_fault
from trainer.launch import FAILURE, LaunchError, available_cores, stay_unprivileged
from trainer.output import complain, emit, say
from trainer.serve.config import Settings, read_settings
from trainer.serve.connections import IDLE, Connections, most_connections
from trainer.serve.gpus import Gpus
from trainer.serve.guard import Guard
from trainer.serve.protocol import LimitedConnection
from trainer.serve.routes import application

GRACE = 8  # Seconds for what was accepted.
LAST = 1.5  # Seconds for the rest of the end; Docker kills after 10.
HEADERS = 2**14  # Bytes of a request's head.
LINES = 10  # Of the log a minute, that clients can cause.


def serve() -> int:
    """Serve until a signal comes; return the exit code."""
    stay_unprivileged()
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    try:
        check_torch()
        settings = read_settings(os.environ)
        gpus = Gpus()
        emit(events.Started(gpus=gpus.uuids))
        most, backlog = most_connections()
        listener = listen(settings, backlog)
    except LaunchError as error:
        kind: Any = error.kind
        emit(events.Failed(kind=kind, message=str(error), exit_code=error.code))
        complain(f"serve {host}: error: {error}")
        return error.code
    torch.set_num_threads(max(1, available_cores() // settings.replicas))
    limits = Connections(most)
    protocol: Any = partial(LimitedConnection, limits)
    log_to_stderr(host)
    guard = application(settings, gpus, limits)
    config = uvicorn.Config(
        guard,
        http=protocol,
        ws="none",
        backlog=backlog,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADERS,
        timeout_keep_alive=int(IDLE),
        timeout_graceful_shutdown=GRACE,
    )
    say(
        f"serve {host}: {settings.name} on port {settings.port}: replicas {settings.replicas}, "
        f"batches of up to {settings.size} within {settings.window * 1000:g} ms"
    )
    EndingServer(config, guard, host).run(sockets=[listener])
    return 0


def check_torch() -> None:
    """Raise LaunchError where torch is too old."""
    if fault := torch_fault(torch.__version__):
        raise LaunchError(fault)


class EndingServer(uvicorn.Server):
    """uvicorn's server, which ends in time whatever still runs."""

    def __init__(self, config: uvicorn.Config, guard: Guard, host: str) -> None:
        super().__init__(config)
        self._guard, self._host = guard, host

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End by a signal, and not by its default action once more at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer what was accepted; the kernel ends what takes longer than it may."""
        if not self.should_exit:
            signal.setitimer(signal.ITIMER_REAL, GRACE + LAST)
        self._guard.ending = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was accepted, and end the process."""
        began = monotonic()
        await super().shutdown(sockets)
        all_answered = monotonic() - began < GRACE
        what = "all that was asked is answered" if all_answered else f"not all within {GRACE} s"
        say(f"serve {self._host}: ends, {what}")
        # Without waiting for threads: one may still compute, or ask nvidia-smi.
        sys.stderr.flush()
        os._exit(0)


class Seldom(logging.Filter):
    """Passes a few lines a minute: clients that send rubbish must not fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._count = 0, 0

    def filter(self, _: logging.LogRecord) -> bool:
        """Whether there is room for one more."""
        minute = int(monotonic() // 60)
        self._count = self._count + 1 if minute == self._minute else 1
        self._minute = minute
        return self._count <= LINES


def log_to_stderr(host: str) -> None:
    """Let uvicorn and asyncio log as all else does, a few lines a minute."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"serve {host}: %(name)s: %(message)s"))
    handler.addFilter(Seldom())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def listen(settings: Settings, backlog: int) -> socket.socket:
    """Listen before anything is loaded; raises LaunchError."""
    try:
        listener = socket.create_server((settings.address, settings.port), backlog=backlog)
    except OSError as error:
        reason = f"port {settings.port} can not be served ({error.strerror})"
        advice = "end what uses it, or change the port"
        raise LaunchError(f"{reason}; {advice}", FAILURE) from error
    # Connections inherit it, and asyncio sets it on its own sockets alone. Without it an answer's
    # body, which is sent behind its head, waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
