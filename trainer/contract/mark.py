"""The line of an event: a mark, then a JSON object. The launcher's programs contain this module."""

import json
from collections.abc import Mapping

MARK = "@kit "
VERSION = 1


def marked(name: str, values: Mapping[str, object]) -> str:
    """Format an event as a line."""
    return MARK + json.dumps({"v": VERSION, "event": name, **values}, ensure_ascii=False)
