"""Webhooks: a JSON body, signed as in Standard Webhooks, and the meaning of answers.

Redirects are not followed: they would send the signature to another address.
"""

import base64
import email.utils
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trainer.contract.notify import shown_url
from trainer.launcher.receivers import Receiver, Wanted

TRY = 10.0  # Seconds of one try, from the connection to the answer.
TITLES = {
    "completed": ("has completed", "success"),
    "failed": ("has failed", "failure"),
    "ended": ("has ended by itself", "warning"),
    "host_lost": ("has lost a host", "warning"),
    "left_out": ("leaves a host out", "warning"),
    "session_ending": ("ends soon", "warning"),
    "test": ("is tried out", "info"),
}
# The kinds of a notice, in words, and with the types of Apprise.


class Outcome(NamedTuple):
    """The result of one try: `fault`, "" after success, and whether another try may help."""

    fault: str = ""
    again: bool = False
    wait: float = 0.0  # Seconds to wait before the next try, as the receiver requests.


def body_of(wanted: Wanted, notice: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a notification; title, body and type are those of an Apprise API server."""
    kind, hosts, message = notice["kind"], notice.get("hosts", []), str(notice["message"])
    words, color = TITLES.get(kind, ("", "info"))
    where = f"{', '.join(hosts)}: " if kind == "failed" and hosts else ""
    known = {"exit_code": notice.get("exit_code"), **(notice.get("result") or {})}
    return {
        "version": 1,
        "id": f"{wanted.cluster}-{wanted.job}-{notice['id']}",
        "kind": kind,
        "job": wanted.job,
        "cluster": wanted.cluster,
        "hosts": list(hosts),
        "time": notice["time"],
        "message": where + message,
        **{name: value for name, value in known.items() if value is not None},
        "title": f"{wanted.cluster}: {wanted.job} {words}".rstrip(),
        "body": where + message,
        "type": color,
    }


def headers_of(receiver: Receiver, name: str, content: bytes, now: float) -> dict[str, str]:
    """The headers of a try: they have its time, and the id of the notification."""
    at = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "kit",
        "webhook-id": name,
        "webhook-timestamp": at,
    }
    if receiver.key:
        signed = b".".join((name.encode(), at.encode(), content))
        digest = hmac.new(receiver.key, signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def try_webhook(receiver: Receiver, body: Mapping[str, Any]) -> Outcome:
    """Send a notification once."""
    content = json.dumps(body, ensure_ascii=False).encode()
    headers = headers_of(receiver, str(body["id"]), content, time.time())
    try:
        status, answer = post(receiver.url, content, headers)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Outcome(f"does not answer ({reason})", again=True)
    return judge(status, answer)


def judge(status: int, headers: HTTPMessage) -> Outcome:
    """The meaning of an answer."""
    if 200 <= status < 300:
        return Outcome()
    if 300 <= status < 400:
        to = headers.get("Location", "")
        place = f" to {shown_url(to)}" if to else ""
        return Outcome(f"answers {status}, a redirect{place}: write the URL that it leads to")
    again = status in {408, 429} or status >= 500
    return Outcome(f"answers {status}", again, seconds_of(headers.get("Retry-After", "")))


def seconds_of(text: str) -> float:
    """The seconds of Retry-After: a number, or a date."""
    if text.strip().isdecimal():
        return float(text)
    with suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


def post(url: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, HTTPMessage]:
    """Post once, within TRY seconds in total; raises OSError, HTTPException or ValueError."""
    parts = urlsplit(url)
    late = threading.Event()
    connection: HTTPConnection
    if parts.scheme.lower() == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(parts.netloc, timeout=TRY, context=context)
    else:
        connection = HTTPConnection(parts.netloc, timeout=TRY)

    def end() -> None:
        """End the request: single bytes of a slow receiver would restart the socket's timeout."""
        late.set()
        if connection.sock:
            with suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    watch = threading.Timer(TRY, end)
    watch.daemon = True
    watch.start()
    try:
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        connection.connect()
        if late.is_set():
            raise TimeoutError
        connection.request("POST", path, content, dict(headers))
        answer = connection.getresponse()
    except (OSError, HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise TimeoutError(f"not within {TRY:.0f} s") from None
        raise
    finally:
        watch.cancel()
        connection.close()
    return answer.status, answer.headers
