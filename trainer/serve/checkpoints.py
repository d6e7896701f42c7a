"""Lets inference servers read this host's checkpoints: python3 -m trainer.serve.checkpoints.

    GET /checkpoints                 a list of the complete ones: name, step, accuracy, host,
                                     when written, manifest, files with their sizes
    GET /checkpoints/<name>/<file>   manifest.json, or a file that the manifest names
    GET /health                      200

    KIT_CHECKPOINTS        the folder; default: /checkpoints
    KIT_CHECKPOINT_PORT    default: 8081
    KIT_HOST               as of the server (config.py)
    KIT_ADDRESS            names or addresses, with commas between them: it listens at the one that
                           is this host's; default: 0.0.0.0, on every interface

Standard library only, some 20 MB of memory, and nothing is ever written. A checkpoint that is
pruned while it is read stays readable until its readers are done: the files are open.
"""

import json
import os
import re
import signal
import socket
import stat
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

from trainer.checkpoints.layout import COMPLETE, MANIFEST, NAME
from trainer.launch import own_address, stay_unprivileged

FILE = re.compile(rf"/checkpoints/({NAME})/([A-Za-z0-9_][A-Za-z0-9_.-]*)")
CONNECTIONS = 32  # At a time; more wait to be accepted.
PATIENCE = 30  # Seconds for which a client may take or send nothing.
LARGEST = 2**24  # Bytes of a manifest: more is none.


def listing(folder: Path, host: str) -> list[dict[str, Any]]:
    """The complete checkpoints in a folder, whose files are not looked into, in order of steps."""
    found = []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if re.fullmatch(NAME, entry.name))
    except OSError:
        return []
    for name in names:
        # One that is pruned meanwhile, or damaged, is not there.
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(describe(folder, name, host))
    return found


def describe(folder: Path, name: str, host: str) -> dict[str, Any]:
    """Describe one; OSError, ValueError, KeyError or TypeError where it is none."""
    with opened(folder, name, COMPLETE) as stream:
        written = os.fstat(stream.fileno()).st_mtime
    manifest = read_manifest(folder, name)
    files = {each: int(about["bytes"]) for each, about in manifest["files"].items()}
    return {
        "name": name,
        "step": int(manifest["step"]),
        "accuracy": manifest["accuracy"],
        "host": host,
        "written": written,  # Seconds since 1970.
        "manifest": manifest,
        "files": files,
    }


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """A checkpoint's manifest; OSError or ValueError where it can not be read."""
    with opened(folder, name, MANIFEST) as stream:
        content = json.loads(stream.read(LARGEST))
    if not isinstance(content, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of all that can be wrong in JSON.
    return content


def opened(folder: Path, name: str, file: str) -> Any:
    """Open a checkpoint's file for reading, never through a link; raises OSError."""
    inside = os.open(folder / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # Not blocking: a named pipe would wait for its writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is not a file")
    return os.fdopen(descriptor, "rb")


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: "Endpoint"
    server_version, sys_version = "kit", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer a list, a file, or 404."""
        if self.path == "/checkpoints":
            return self.answer(200, listing(self.server.folder, self.server.host))
        if self.path == "/health":
            return self.answer(200, {"status": "ok"})
        if parts := FILE.fullmatch(self.path):
            with suppress(OSError, ValueError):
                return self.send_file(parts[1], parts[2])
        return self.answer(404, {"error": "there is no such thing", "fix": "see /checkpoints"})

    def send_file(self, name: str, file: str) -> None:
        """Stream a file of a complete checkpoint; OSError or ValueError where it has none."""
        folder = self.server.folder
        opened(folder, name, COMPLETE).close()
        if file != MANIFEST and file not in read_manifest(folder, name).get("files", {}):
            raise FileNotFoundError(file)
        with opened(folder, name, file) as stream:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(stream.fileno()).st_size))
            self.end_headers()
            # The client's connection may break: then there is nobody to tell.
            with suppress(OSError):
                self.connection.sendfile(stream)

    def answer(self, status: int, content: Any) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests: a server asks every other second."""


class Endpoint(ThreadingHTTPServer):
    """A thread for each of a bounded number of connections."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], folder: Path, host: str) -> None:
        self.folder, self.host = folder, host
        self._free = BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Bind, without the reverse look-up of the address that HTTPServer makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.host, int(self.socket.getsockname()[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait until fewer are served than may be."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: Any) -> None:
        """Ignore a client that has disconnected."""


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    host = os.environ.get("KIT_HOST") or socket.gethostname()
    text = os.environ.get("KIT_CHECKPOINT_PORT") or "8081"
    folder = Path(os.environ.get("KIT_CHECKPOINTS") or "/checkpoints")
    if not text.isdecimal() or not 0 < int(text) < 65536:
        sys.stderr.write(f'serve {host}: error: KIT_CHECKPOINT_PORT must be a port, is "{text}"\n')
        return 2
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    stay_unprivileged()
    try:
        address = own_address((os.environ.get("KIT_ADDRESS") or "0.0.0.0").split(","))
        endpoint = Endpoint((address, int(text)), folder, host)
    except OSError as error:
        advice = "end what uses it, or set KIT_CHECKPOINT_PORT"
        sys.stderr.write(f"serve {host}: error: port {text}: {error.strerror}; {advice}\n")
        return 1
    Thread(target=endpoint.serve_forever, daemon=True).start()
    sys.stdout.write(f"serve {host}: offers the checkpoints in {folder} on port {text}\n")
    sys.stdout.flush()
    received = signal.sigwait(ends)
    sys.stdout.write(f"serve {host}: ends on {signal.Signals(received).name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
