"""Pulls of images from a registry that may be unavailable for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from kit.errors import KitError

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further try: a minute in total."""
AWAY = (
    *("connection refused", "connection reset", "no route to host", "network is unreachable"),
    *("i/o timeout", "timeout exceeded", "handshake timeout", "deadline exceeded", "eof"),
    *("bad gateway", "service unavailable", "gateway timeout", "too many requests"),
    *("toomanyrequests", "internal server error"),
)
"""Docker's errors for a registry that is unavailable; other errors concern the image."""


def is_away(error: KitError) -> bool:
    """Return whether Docker's error means that a registry is unavailable."""
    return any(words in error.message.lower() for words in AWAY)


def pull(attempt: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Try to pull an image until its registry answers, with growing pauses.

    Raises:
        KitError: The registry refuses it, or was unavailable in all tries.
    """
    for seconds in PAUSES:
        try:
            return attempt()
        except KitError as error:
            if not is_away(error):
                raise
        pause(seconds)
    return attempt()
