"""Whether an edited inventory differs from the former one by facts of its hosts alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.discover.found import Found
from kit.errors import ProblemsError
from kit.yamlfile import parse

FACTS = ("gpus", "speed")


def sound(before: str, after: str, file: str, found: Sequence[Found]) -> bool:
    """Return whether only the facts of the hosts `found` differ, and no host but theirs is new."""
    try:
        old, new = parse(before, file).value, parse(after, file).value
    except ProblemsError:
        return False
    known = {str(each.known.loc[1]) for each in found if each.known}
    names = {each.name for each in found if not each.known}
    return _others(old, known, set()) == _others(new, known, names)


def _others(document: Any, known: set[str], new: set[str]) -> dict[str, Any]:
    hosts = {
        name: {key: value for key, value in host.items() if name not in known or key not in FACTS}
        for name, host in document["hosts"].items()
        if name not in new
    }
    return {**document, "hosts": hosts}
