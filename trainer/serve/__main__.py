"""The inference server: python3 -m trainer.serve. Its settings are in config.py.

It answers with the newest complete checkpoint of a job, on each GPU that it was given, and takes
a newer one while it answers. From here on: routes.py has the routes, batching.py the queue before
the replicas, reload.py the thread that looks for checkpoints.

It ends on SIGTERM once everything that it has accepted is answered, with exit code 0; a mistake
in the input is 2, a failure 1.
"""

import os
import signal
import socket
import sys
from typing import Any

import torch
import uvicorn

from trainer.contract import events
from trainer.launch import FAILURE, LaunchError, available_cores, stay_unprivileged
from trainer.output import complain, emit, say
from trainer.serve.config import Settings, read_settings
from trainer.serve.gpus import Gpus
from trainer.serve.routes import application

GRACE = 9  # Seconds for what was accepted; Docker kills after 10.
IDLE = 30  # Seconds for which a connection stays open without a request.


def main() -> int:
    """Serve until a signal comes; return the exit code."""
    stay_unprivileged()
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    try:
        settings = read_settings(os.environ)
        gpus = Gpus()
        emit(events.Started(gpus=gpus.uuids))
        listener = listen(settings)
    except LaunchError as error:
        kind: Any = error.kind
        emit(events.Failed(kind=kind, message=str(error), exit_code=error.code))
        complain(f"serve {host}: error: {error}")
        return error.code
    torch.set_num_threads(max(1, available_cores() // settings.replicas))
    config = uvicorn.Config(
        application(settings, gpus),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
    )
    say(
        f"serve {host}: {settings.name} on port {settings.port}: replicas {settings.replicas}, "
        f"batches of up to {settings.size} within {settings.window * 1000:g} ms"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it is done, and this handler receives it.
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
    say(f"serve {host}: ends, all that was asked is answered")
    return 0


def listen(settings: Settings) -> socket.socket:
    """Listen before anything is loaded; raises LaunchError."""
    try:
        listener = socket.create_server((settings.address, settings.port), backlog=2048)
    except OSError as error:
        reason = f"port {settings.port} can not be served ({error.strerror})"
        advice = "end what uses it, or change the port"
        raise LaunchError(f"{reason}; {advice}", FAILURE) from error
    # Connections inherit it, and asyncio sets it on its own sockets alone. Without it an answer's
    # body, which is sent behind its head, waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


if __name__ == "__main__":
    sys.exit(main())
