"""A client of inference servers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

PATIENCE = 120.0
"""Seconds in which a server has to answer a request that it refused."""


def get(url: str, body: object = None, token: str = "") -> Any:
    """Send a request to a server; a refusal is returned, not raised."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def ready(url: str) -> bool:
    with contextlib.suppress(OSError):
        return "error" not in get(f"{url}/ready")
    return False


def digits(number: int = 40) -> tuple[list[Any], list[int]]:
    """Handwritten digits as the server's inputs, and their classes."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    samples = (pictures[:number] * 255 / 16).reshape(-1, 1, 8, 8).tolist()
    return samples, labels[:number].tolist()


def right_answers(url: str, token: str = "") -> float:
    """The share of digits that a server classifies correctly."""
    samples, labels = digits()
    body = {"inputs": samples, "top": 1}
    deadline = time.monotonic() + PATIENCE
    # A busy server refuses a request that has waited, and says that it can be sent again.
    while "error" in (answer := get(f"{url}/predict", body, token)):
        assert time.monotonic() < deadline, answer
        time.sleep(1)
    told = [int(each["classes"][0]["class"]) for each in answer["predictions"]]
    return sum(map(int.__eq__, told, labels)) / len(labels)


class Client:
    """Sends requests to a server, one after the other, and counts failures."""

    def __init__(self, url: str, token: str = "") -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._url = url
        self._token = token
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _ask(self) -> None:
        body = {"inputs": digits(4)[0], "top": 1}
        while not self._over.wait(0.02):
            try:
                answer = get(f"{self._url}/predict", body, self._token)
            except OSError as error:
                answer = {"error": str(error)}
            if "error" in answer:
                self.failed.append(answer["error"])
            else:
                self.answered += 1
