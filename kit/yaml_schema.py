"""The core schema of YAML 1.2: the values of scalars, and a loader of nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any

import yaml

from kit.values import WrongValueError
from trainer.contract.words import shown

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"
MAP = "tag:yaml.org,2002:map"
SEQ = "tag:yaml.org,2002:seq"
_LARGEST = 2**63 - 1
# https://yaml.org/spec/1.2.2/#1032-tag-resolution, with the merge key of Docker's files, and
# without numbers with leading zeros: 007 is an identifier and stays text.
_CORE_SCHEMA = [
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    (MERGE, r"<<", ["<"]),
]


class Loader(yaml.CSafeLoader):
    """Makes nodes with the tags of the core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    # PyYAML's resolvers by path, which kit does not use, are called twice for each node. Instead it
    # calls a type whose objects it drops: a function of Python would take a quarter of the time.
    descend_resolver = ascend_resolver = chain  # type: ignore[assignment]

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Return a node's tag. It is cached: a large inventory repeats few words."""
        if kind is yaml.ScalarNode:
            return _plain_tag(value) if implicit[0] else _STR
        return MAP if kind is yaml.MappingNode else SEQ


for _tag, _pattern, _first in _CORE_SCHEMA:
    Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


def _integer(text: str) -> int:
    # Do not convert longer texts: Python is slow with them and rejects 4,300 digits.
    number = None
    if len(text) <= 24:
        number = int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    if number is None or abs(number) > _LARGEST:
        raise WrongValueError(f"{shown(text)[1:-1]} is too large", f"write at most {_LARGEST}")
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


SCALARS: dict[str, Callable[[str], Any]] = {
    _STR: str,
    _NULL: lambda _: None,
    _BOOL: _boolean,
    _INT: _integer,
    _FLOAT: lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    MERGE: str,
}


@lru_cache(maxsize=65_536)
def _plain_tag(scalar: str) -> str:
    """Return the tag of a scalar without quotes."""
    resolvers = Loader.yaml_implicit_resolvers.get(scalar[:1], [])
    return next((tag for tag, pattern in resolvers if pattern.match(scalar)), _STR)


@lru_cache(maxsize=65_536)
def plain(scalar: str) -> Any:
    """Return the value of a scalar without quotes. A large inventory repeats few words."""
    return SCALARS[_plain_tag(scalar)](scalar)
