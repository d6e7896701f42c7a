"""The lines of events: each has a mark, then a JSON object.

    [rank0]: @kit {"v": 1, "event": "saved", "time": 1790000000.5, "checkpoint": "step-00000300", …}

Two modules write events: trainer/output.py, for the training and the server, and
trainer/launcher/output.py, for the launcher and the keeper. `kit.runtime.events` reads them.
"""

from __future__ import annotations

import json
import math
import time as clock
from dataclasses import asdict, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import trainer.contract.limit_events
import trainer.contract.queue_events
import trainer.contract.session_events  # noqa: F401 - Its events are kinds, too.
from trainer.contract.events import KINDS, Event
from trainer.contract.mark import MARK, VERSION, marked


def line(event: Event) -> str:
    """Format an event as a line; numbers that are not finite become null."""
    values = {name: _written(value) for name, value in asdict(event).items()}
    values["time"] = round(event.time or clock.time(), 3)
    return marked(event.NAME, values)


def _written(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse(text: str) -> Event | None:
    """Parse a line; None if it is not an event, or one unknown to this version.

    Any script may print the mark: a malformed event is an ordinary line.
    """
    if not text.startswith(MARK):
        return None
    try:
        content = json.loads(text[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("v") != VERSION:
        return None
    kind = KINDS.get(content["event"]) if isinstance(content.get("event"), str) else None
    return _read(kind, content) if kind else None


def _read(kind: type[Event], content: dict[str, Any]) -> Event | None:
    values: dict[str, Any] = {}
    hints = _HINTS[kind]
    for each in fields(kind):
        if each.name in content:
            value = content[each.name]
            value = tuple(value) if isinstance(value, list) else value
            if not _fits(value, hints[each.name]):
                return None
            values[each.name] = value
    try:
        return kind(**values)
    except TypeError:  # A field without a default is missing.
        return None


_HINTS = {kind: get_type_hints(kind) for kind in KINDS.values()}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON has a field's type."""
    options = get_args(hint)
    if hint == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if get_origin(hint) is dict:
        names, values = options
        return isinstance(value, dict) and all(
            _fits(name, names) and _fits(each, values) for name, each in value.items()
        )
    if get_origin(hint) is Literal:
        return value in options
    if options:
        return any(_fits(value, each) for each in options)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is hint  # The exact type: in Python a bool is also an int.
