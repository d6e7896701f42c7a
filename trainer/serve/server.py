"""The start and end of the server, and the limits for clients.

Read next: routes.py has the routes, inputs.py reads their bodies, batching.py has the queue before
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
from trainer.contract.listening import open_listener
from trainer.core.job import torch_fault
from trainer.launcher.container import available_cores
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.process import stay_unprivileged
from trainer.output import emit, say, say_error
from trainer.parallel.device import cuda_fault
from trainer.serve.config import Settings, read_settings
from trainer.serve.connections import IDLE, Connections, most_connections
from trainer.serve.gpus import Gpus
from trainer.serve.guard import Guard
from trainer.serve.protocol import LimitedConnection
from trainer.serve.routes import application

GRACE = 8  # Seconds for accepted requests.
LAST = 1.5  # Seconds for the rest of the shutdown; Docker kills containers after 10.
HEADERS = 2**14  # Bytes of a request's head.
LINES = 10  # Log lines a minute that clients can cause.


def serve() -> int:
    """Serve until a signal arrives; return the exit code."""
    stay_unprivileged()
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    try:
        check_torch()
        settings = read_settings(os.environ)
        gpus = Gpus()
        emit(events.Started(gpus=gpus.uuids))
        check_device(gpus, settings)
        most, backlog = most_connections()
        listener = listen(settings, backlog)
    except LaunchError as error:
        kind: Any = error.kind
        emit(events.Failed(kind=kind, message=str(error), exit_code=error.code))
        say_error(f"serve {host}: error: {error}")
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
    """Raise LaunchError if torch is too old."""
    if fault := torch_fault(torch.__version__):
        raise LaunchError(fault)


def check_device(gpus: Gpus, settings: Settings) -> None:
    """Raise LaunchError if PyTorch cannot use the GPUs of this container."""
    if fault := cuda_fault(os.environ, len(gpus.uuids), settings.replicas):
        raise LaunchError(fault, FAILURE, "gpu")


class EndingServer(uvicorn.Server):
    """uvicorn's server, with a deadline for its end."""

    def __init__(self, config: uvicorn.Config, guard: Guard, host: str) -> None:
        super().__init__(config)
        self._guard, self._host = guard, host

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on a signal, without raising the signal again at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer accepted requests; the kernel ends the process after the deadline."""
        if not self.should_exit:
            signal.setitimer(signal.ITIMER_REAL, GRACE + LAST)
        self._guard.ending = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer accepted requests, and end the process."""
        began = monotonic()
        await super().shutdown(sockets)
        all_answered = monotonic() - began < GRACE
        what = "all requests are answered" if all_answered else f"not all within {GRACE} s"
        say(f"serve {self._host}: ends, {what}")
        # Do not wait for threads: one may still compute or run nvidia-smi.
        sys.stderr.flush()
        os._exit(0)


class RateLimit(logging.Filter):
    """Passes a few lines a minute: clients with invalid requests must not fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._minute, self._count = 0, 0

    def filter(self, _: logging.LogRecord) -> bool:
        """Whether one more line may pass."""
        minute = int(monotonic() // 60)
        self._count = self._count + 1 if minute == self._minute else 1
        self._minute = minute
        return self._count <= LINES


def log_to_stderr(host: str) -> None:
    """Let uvicorn and asyncio log in the server's format, a few lines a minute."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"serve {host}: %(name)s: %(message)s"))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def listen(settings: Settings, backlog: int) -> socket.socket:
    """Listen before a checkpoint is loaded; raises LaunchError."""
    try:
        listener = open_listener(settings.address, settings.port, backlog)
    except OSError as error:
        reason = f"port {settings.port} cannot be served ({error.strerror})"
        advice = "end what uses it, or change the port"
        raise LaunchError(f"{reason}; {advice}", FAILURE) from error
    # Connections inherit it; asyncio sets it only on sockets that it creates. Without it, the body
    # of an answer, sent after its head, waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
