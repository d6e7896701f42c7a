"""The data agent of a host: keeps its cache, fetches what jobs use, and offers it to other hosts.

    python -m trainer.datasets.agent --cache /cache --server http://HOST:8090
        --peers HOST:PORT[,…] --port 6881 [--size BYTES] [--store /store]

It answers on the Unix socket CACHE/agent.sock (HTTP/1.1, JSON lines): POST /use, GET /status,
DELETE /<name>/<version>. Peers find it at --port, and its manifests at the port above that. KIT_KEY
is as for the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from trainer.datasets.api import Agent, make_api
from trainer.datasets.cache import Cache
from trainer.datasets.engine import Address, Engine
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import locked
from trainer.datasets.peers import Others
from trainer.datasets.server import require_key
from trainer.datasets.web import listen, make_app, make_config
from trainer.output import say, say_error

PATIENCE = 300.0  # Seconds without progress after which a fetch fails.


class Server(uvicorn.Server):
    """One of two servers of this process; the process handles the signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals."""
        yield


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; raises DataSetError."""
    parser = argparse.ArgumentParser(prog="agent", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder of the cache")
    parser.add_argument("--server", required=True, help="the data server: http://HOST:PORT")
    parser.add_argument("--peers", default="", help="HOST:PORT[,…]: the agents of all hosts")
    parser.add_argument("--port", type=int, default=6881)
    parser.add_argument("--address", default="", help="listen only there; default: everywhere")
    parser.add_argument("--size", type=int, default=0, help="most bytes of the cache")
    parser.add_argument("--store", type=Path, help="the store, on the storage host")
    parser.add_argument("--patience", type=float, default=PATIENCE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    server = urlsplit(options.server)
    if server.scheme not in ("http", "https") or not server.hostname:
        what = f"--server must be a URL, is {options.server}"
        raise DataSetError(what, "use http://HOST:8090", MISTAKE)
    options.server = options.server.rstrip("/")
    options.peers = [parse_peer(peer) for peer in options.peers.split(",") if peer]
    return options


def parse_peer(text: str) -> Address:
    """Split HOST:PORT; raises DataSetError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise DataSetError(f"--peers: {text} is not HOST:PORT", "use pc1:6881,pc2:6881", MISTAKE)
    return host.strip("[]"), int(port)


def open_socket(cache: Path) -> socket.socket:
    """Listen on the Unix socket: jobs of any user may connect."""
    path = cache / "agent.sock"
    path.unlink(missing_ok=True)  # This process has the cache's lock.
    listener = socket.socket(socket.AF_UNIX)
    # A socket address has at most 107 bytes (unix(7)), but a cache may have a longer path.
    folder = os.open(cache, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    except OSError as error:
        what = f"{path} cannot be made ({error})"
        raise DataSetError(what, "check the permissions of this folder, and its disk") from error
    finally:
        os.close(folder)
    path.chmod(0o666)
    listener.listen(128)
    return listener


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    engine = Engine(options.address, options.port)
    cache = Cache(options.cache, options.size, options.store)
    key = require_key()
    others = Others(options.server, options.peers, key)
    agent = Agent(cache, engine, others, options.patience)
    roots = [root for root in (options.store, options.cache) if root]
    offers = listen(options.address, options.port + 1)
    servers = [
        (Server(make_config(make_app(roots, data=False, key=key))), offers),
        (Server(make_config(make_api(agent))), open_socket(options.cache)),
    ]
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tasks = [asyncio.create_task(one.serve(sockets=[on])) for one, on in servers]
    tasks.append(asyncio.create_task(agent.run()))
    say(f"data agent: keeps {options.cache}, offers it on port {options.port}")
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for one, _ in servers:
        one.should_exit = True
    agent.stop()
    waiting.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    engine.save()
    for _ in range(20):  # The answers arrive within a second.
        await asyncio.sleep(0.05)
        engine.poll()
    say("data agent: ends")


def main(arguments: list[str]) -> int:
    """Run the agent; return the exit code."""
    try:
        options = parse_options(arguments)
        options.cache.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            what = f"another data agent uses {options.cache}"
            fix = "end it, or give this one another --cache"
            stack.enter_context(locked(options.cache / "agent.lock", what, fix))
            os.umask(0o022)
            asyncio.run(serve(options))
    except DataSetError as error:
        say_error(f"data agent: error: {error}")
        return error.code
    except OSError as error:
        say_error(f"data agent: error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
