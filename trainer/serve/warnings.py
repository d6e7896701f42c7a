"""Warnings about sources of checkpoints: each is printed once, and few for each source."""

from collections import deque
from collections.abc import Hashable
from time import monotonic

from trainer.output import say_error

REMEMBERED = 64  # Texts of a source.
MOST, WITHIN = 10, 600.0  # The most lines about a source, and their period in seconds.


class Warnings:
    """Prints warnings about sources, with a limited number of lines."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._told: dict[Hashable, deque[tuple[str, float]]] = {}

    def tell(self, source: Hashable, text: str) -> None:
        """Print a warning, unless it is a repetition or its source had many recently.

        The text is converted to one line of printable ASCII.
        """
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
        told, now = self._told.setdefault(source, deque(maxlen=REMEMBERED)), monotonic()
        lately = sum(now - when < WITHIN for _, when in told)
        if lately < MOST and all(text != each for each, _ in told):
            told.append((text, now))
            say_error(f"serve {self._host}: warning: {text}")
