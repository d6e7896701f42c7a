"""Checks a checkpoint's manifest: its content, from a disk or another host, is not trusted.

Standard library only: the endpoint that offers checkpoints has no torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainer.checkpoints.layout import STATE

LARGEST = 2**22  # Bytes: a label for every character of Unicode fits.
TEXT = "text"
"""The data set whose best checkpoint is that of the lowest loss."""
MOST = 2**53  # Of an integer: larger ones are not exact in JSON.


class UnusableError(Exception):
    """A folder is not a checkpoint that this job may load; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """The part of a manifest that is needed to choose and read a checkpoint."""

    step: int
    epoch: int
    accuracy: float | None  # Share of the test samples.
    job: str
    size: int  # Bytes of the state.
    sha256: str  # Of the state.
    loss: float | None = None  # Mean over the test samples.
    text: bool = False  # Whether the data set is a text.

    @property
    def figure(self) -> str:
        """The meaning of the score, for people; "" if it is not known."""
        if self.score is None:
            return ""
        if self.score == self.accuracy:
            return f"accuracy {self.accuracy * 100:.1f} %"
        return f"loss {-self.score:.4g}"

    @property
    def score(self) -> float | None:
        """The figure that selects the best checkpoint: the accuracy, or the negative loss.

        For a text it is the loss, which is more precise: the likeliest token is often wrong.
        """
        by_loss = None if self.loss is None else -self.loss
        if self.accuracy is None or (self.text and by_loss is not None):
            return by_loss
        return self.accuracy


def parse(text: bytes) -> dict[str, Any]:
    """Return a manifest's JSON object, whose values are unchecked; raises UnusableError."""
    if len(text) > LARGEST:
        raise UnusableError(f"its manifest has more than {LARGEST} bytes")
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise UnusableError("it cannot be read (its manifest is nested too deeply)") from error
    except ValueError as error:
        raise UnusableError(f"it cannot be read ({error!r})") from error
    if not isinstance(content, dict):
        raise UnusableError(f"it cannot be read (its manifest is {shown(content)})")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is there twice")
    return content


def check(content: Any) -> Manifest:
    """Return the checked values of a manifest; raises UnusableError if one is invalid."""
    values = []
    for path, (is_valid, meaning) in RULES.items():
        value = content
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if not is_valid(value):
            place = ".".join(path)
            raise UnusableError(f"it cannot be read ({place} is {shown(value)}, not {meaning})")
        values.append(value)
    loss, job = content.get("validation_loss"), content["job"]
    if loss is not None and not (type(loss) is float and math.isfinite(loss)):
        raise UnusableError(f"it cannot be read (validation_loss is {shown(loss)}, not a number)")
    return replace(Manifest(*values), loss=loss, text=job.get("dataset") == TEXT)


def shown(value: Any) -> str:
    """Format an untrusted value as one short line of printable ASCII."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def is_whole(value: Any) -> bool:
    """Whether a value is an integer from 0 on, and not a bool."""
    return type(value) is int and 0 <= value < MOST


def _is_share(value: Any) -> bool:
    return value is None or (
        type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_sum(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value))


WHOLE = (is_whole, "a whole number from 0 on")
RULES: dict[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("step",): WHOLE,
    ("epoch",): WHOLE,
    ("accuracy",): (_is_share, "a number of 0 to 1"),
    ("job", "name"): (_is_name, "a text"),
    ("files", STATE, "bytes"): WHOLE,
    ("files", STATE, "sha256"): (_is_sum, "a SHA-256"),
}
"""The place of each value of `Manifest`, in its order, with its check and description."""
