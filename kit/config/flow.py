"""Values in YAML's flow style, for the lines that messages propose."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"[A-Za-z0-9_./-][A-Za-z0-9_./=+@%-]*")
_NO_TEXT = re.compile(
    r"-+|[-+]?[0-9_]*\.?[0-9_]*(e[-+]?[0-9]+)?|0[xob].*|[0-9]{4}-.*|[-+]?\.(inf|nan)"
    r"|~|null|true|false|y|yes|n|no|on|off",
    re.IGNORECASE,
)
"""Words that YAML 1.1 or 1.2 takes for something other than a text."""


def flow(value: object) -> str:
    """Format a value on one line; words are in quotes only where YAML needs them."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{flow(name)}: {flow(each)}' for name, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _NO_TEXT.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def line(name: str, value: object) -> str:
    """Format a key and its value as code."""
    return f"`{name}: {flow(value)}`"
