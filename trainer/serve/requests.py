"""The id of each request, and the access log: a line for each answer, without bodies and tokens."""

import json
import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from trainer.output import say

HEADER = "X-Request-Id"
WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
REPEAT = 100  # Entries.
LONGEST = 200  # Characters of a path in the log.
PROBES = ("/health", "/ready", "/metrics")  # Frequent requests: only failures are logged.
REQUEST: ContextVar[str] = ContextVar("request", default="")


def request_id(headers: Headers) -> str:
    """Return the id that a client or a proxy has sent, if it is well-formed, or a new one."""
    sent = headers.get(HEADER, "")
    return sent if WELL_FORMED.fullmatch(sent) else secrets.token_hex(8)


@dataclass(frozen=True)
class Entry:
    """An answered request; `ms` until the last byte was sent, `bytes` of the answer's body.

    `sender` is the client that a proxy names in a header, which a client can forge.
    """

    time: str
    host: str
    client: str
    sender: str
    method: str
    path: str
    status: int
    ms: float
    bytes: int
    request: str

    def line(self) -> str:
        """Format it for people."""
        sender = f" for {self.sender}" if self.sender else ""
        return (
            f"serve {self.host}: {self.method} {self.path} {self.status}, {self.ms:g} ms, "
            f"{self.bytes} bytes, {self.client}{sender}, request {self.request}"
        )


class AccessLog:
    """Writes entries: `lines` for people, `json`, or `none`.

    After each REPEAT entries it calls `repeat`, which emits the server's state again: the last 500
    lines always contain it.
    """

    def __init__(self, form: str, host: str, repeat: Callable[[], None]) -> None:
        self._form, self._host, self._repeat = form, host, repeat
        self._entries = 0

    def write(self, scope: Scope, request: str, status: int, seconds: float, size: int) -> None:
        """Write the entry of a request."""
        path = scope["path"]
        if self._form == "none" or (path in PROBES and status < 400):
            return
        client, headers = scope.get("client"), Headers(scope=scope)
        entry = Entry(
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            host=self._host,
            client=client[0] if client else "",
            sender=plain(headers.get("x-forwarded-for", "").partition(",")[0].strip()),
            method=plain(scope["method"]),
            path=plain(path),
            status=status,
            ms=round(seconds * 1000, 1),
            bytes=size,
            request=request,
        )
        say(json.dumps(asdict(entry)) if self._form == "json" else entry.line())
        self._entries += 1
        if self._entries % REPEAT == 0:
            self._repeat()


def plain(text: str) -> str:
    """Return a client's text for a log: one line of printable ASCII without spaces."""
    shown = "".join(each if "!" <= each <= "~" else ascii(each)[1:-1] for each in text[:LONGEST])
    return shown.replace(" ", "%20")
