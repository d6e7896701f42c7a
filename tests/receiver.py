"""A receiver of webhooks on loopback, which answers as a test says: with faults, or not at all."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = int | tuple[int, Mapping[str, str]] | None
"""A status, with headers; None: no answer before the end of the test."""


@dataclass
class Posted:
    """A request as it has arrived."""

    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        found = json.loads(self.content)
        assert isinstance(found, dict)
        return found


@dataclass
class Hook:
    """A receiver: its `answers` come in their order, and the last one again and again."""

    answers: tuple[Answer, ...]
    posted: list[Posted] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def kinds(self) -> list[str]:
        return [each.body["kind"] for each in self.posted]

    def answer(self) -> Answer:
        return self.answers[min(len(self.posted), len(self.answers)) - 1]


@contextmanager
def hook(*answers: Answer, address: str = "127.0.0.1") -> Iterator[Hook]:
    """Serve a receiver at an address of this machine."""
    found = Hook(answers or (200,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            found.posted.append(Posted(self.path, dict(self.headers), content))
            answer = found.answer()
            if answer is None:
                found.over.wait()
                return
            status, headers = answer if isinstance(answer, tuple) else (answer, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((address, 0), Handler) as server:
        found.url = f"http://{address}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield found
        finally:
            found.over.set()
            server.shutdown()
            thread.join()
