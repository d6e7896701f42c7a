"""The words of messages about values and names, the same in kit and in the trainer."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

LONGEST, MOST_SHOWN = 60, 20  # Characters of a value, and known names, in a message.


def shown(value: object) -> str:
    """Format a value for a message, with a limited length."""
    if value is None:
        return "nothing"
    plain = isinstance(value, (bool, dict, list))
    text = json.dumps(value, default=str, ensure_ascii=False) if plain else repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def nearest(word: object, known: Iterable[str]) -> str:
    """Suggest the nearest known name, or list the known names."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.65)
    more = f" … ({len(known)} in all)" if len(known) > MOST_SHOWN else ""
    some = ", ".join(known[:MOST_SHOWN])
    return f"did you mean {close[0]}?" if close else f"use one of {some}{more}"


def some(names: Iterable[str], most: int = 10) -> str:
    """Join names for a message: the first ones, and the number of the others."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
