"""The reference of the events, from their dataclasses."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trainer.contract import event_lines, events
from trainer.contract.mark import MARK, VERSION

HEAD = """\
# Events

Containers print lines for people and events for programs. An event is one JSON object on one line
of standard output, after the mark `{mark}`. A worker's line begins with its rank:

    [rank0]: {example}

Nothing prints events to a terminal. `kit logs` hides them, `kit logs --events` shows them.
`trainer/contract/events.py` defines them, `event_lines.py` beside it reads them.

`v` is the version of the format, now {version}. It rises when a reader of older events would be
misled. New events and new fields do not raise it: a reader ignores what it does not know. Every
event has `v`, `event` and `time`, in seconds since 1970 by the clock of the host.
"""


def events_page() -> str:
    """Return the page of all events."""
    example = event_lines.line(
        events.Saved(time=1790000000.5, checkpoint="step-00000300", epoch=6, step=300)
    )
    head = HEAD.format(mark=MARK.strip(), example=example, version=VERSION)
    parts = [head, *(_event(name, kind) for name, kind in events.KINDS.items())]
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in failures().items())
    parts.append(f"## Kinds of failure\n\n| `kind` | meaning |\n| --- | --- |\n{rows}\n")
    return "\n".join(parts)


def failures() -> dict[str, str]:
    """Return the classes of failures, and the comments behind them in the source."""
    source = inspect.getsource(events)
    block = source.partition("FailureClass = Literal[")[2].partition("\n]")[0]
    found = dict(re.findall(r'"(\w+)",  # (.+)', block))
    assert tuple(found) == get_args(events.FailureClass)
    return found


def _event(name: str, kind: type[events.Event]) -> str:
    text = inspect.cleandoc(kind.__doc__ or "")
    rows = ["| field | type | may be missing |", "| --- | --- | --- |"]
    hints = get_type_hints(kind)
    for each in fields(kind):
        if each.name != "time":
            optional = "yes" if _optional(each) else ""
            rows.append(f"| `{each.name}` | {_type(hints[each.name])} | {optional} |")
    return f"## `{name}`\n\n{text}\n\n" + "\n".join(rows) + "\n"


def _optional(field: Field[Any]) -> bool:
    return field.default is not MISSING


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal and hint != events.FailureClass:
        return " or ".join(f"`{each}`" for each in get_args(hint))
    if hint == events.FailureClass:
        return "a [kind of failure](#kinds-of-failure)"
    if get_origin(hint) is tuple:
        return "list of texts"
    if get_origin(hint) is dict:
        return "numbers by name"
    names = {str: "text", int: "integer", float: "number", type(None): "null"}
    return " or ".join(names[each] for each in get_args(hint) or (hint,))
