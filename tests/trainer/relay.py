"""A server between a program and a web server, which cuts, changes or delays answers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Change = Callable[["Request", bytes], bytes]
OWN = {"connection", "content-length", "date", "server", "transfer-encoding"}


@dataclass(frozen=True)
class Request:
    """A request that has passed: `start` is the first byte that it asks for."""

    method: str
    path: str
    start: int
    headers: dict[str, str] = field(compare=False)


class Relay(ThreadingHTTPServer):
    """Passes requests on; `change` returns the part of a GET's content that is sent."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.upstream, self.seen = port, list[Request]()
        self.change: Change = lambda _, content: content

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def starts(self, end: str) -> list[int]:
        """The first bytes of the GETs whose path ends so."""
        return [each.start for each in self.seen if each.path.partition("?")[0].endswith(end)]


class Passing(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        request = Request(self.command, self.path, start, dict(self.headers))
        if self.command == "GET":
            self.server.seen.append(request)
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)
        upstream.request(self.command, self.path, headers=dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OWN:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        upstream.close()
        sent = self.server.change(request, content) if self.command == "GET" else b""
        self.wfile.write(sent)
        self.close_connection = len(sent) < len(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    """A relay to a port of this machine."""
    with Relay(port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
