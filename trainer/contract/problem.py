"""The input and the findings of a rule between the keys of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

Values = Mapping[str, Any]
"""The values of all keys that are valid by themselves, as `section.key`."""
Written = Collection[str]
"""The names of the keys that the user wrote."""


class Problem(NamedTuple):
    """A key that conflicts with others."""

    section: str
    key: str
    what: str
    fix: str
