"""YAML with positions: every value can be traced back to its line.

PyYAML's libyaml binding composes nodes with marks; the values are built from the nodes here, by the
core schema of YAML 1.2 (so `on`, `NO` and `22:30` stay text) and with duplicate keys refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kit.errors import InputError, Loc, Problem, ProblemsError

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"

# https://yaml.org/spec/1.2.2/#1032-tag-resolution, plus the merge key that Docker's files use too.
_CORE_SCHEMA = [
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    (_MERGE, r"<<", ["<"]),
]


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)


_SCALARS: dict[str, Callable[[str], Any]] = {
    _STR: str,
    _NULL: lambda _: None,
    _BOOL: lambda text: text.lower() == "true",
    _INT: _integer,
    _FLOAT: lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    _MERGE: str,
}


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file: its plain value and the nodes that know the lines.

    `file` is the name that messages show.
    """

    file: str
    value: Any
    root: yaml.Node | None = field(repr=False)

    def line(self, loc: Loc) -> int:
        """Return the 1-based line of `loc`, or of its nearest ancestor that is written down."""
        node, line = self.root, 1
        if node is not None:
            line = node.start_mark.line + 1
        for part in loc:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        merged = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged.append(value)
            elif key.value == str(part):
                return key.start_mark.line + 1, value
        for value in merged:
            found = _child(value, part)
            if found is not None:
                return found
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


class _Builder:
    """Turns nodes into plain values and collects what is wrong on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._done: dict[int, Any] = {}

    def build(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        key = id(node)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            self._problem(node, "the anchor contains itself", "write the value out once")
            return None
        self._open.add(key)
        value = self._mapping(node) if isinstance(node, yaml.MappingNode) else self._sequence(node)
        self._open.discard(key)
        self._done[key] = value
        return value

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        make = _SCALARS.get(node.tag)
        if make is None:
            self._problem(node, f"the tag {node.tag} means nothing here", "leave it out")
            return node.value
        try:
            return make(node.value)
        except ValueError:
            kind = node.tag.rsplit(":", 1)[-1]
            self._problem(node, f"{node.value!r} is no {kind}", "write it without the tag")
            return node.value

    def _sequence(self, node: yaml.Node) -> list[Any]:
        return [self.build(item) for item in node.value]

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        value: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                inherited |= self._merged(value_node)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, "a key must be a plain word", "write `key: value`")
                continue
            key = key_node.value
            if key in lines:
                what = f"the key {key} is already given in line {lines[key]}"
                self._problem(key_node, what, "keep one of the two")
            lines[key] = key_node.start_mark.line + 1
            value[key] = self.build(value_node)
        return {**inherited, **value} if inherited else value

    def _merged(self, node: yaml.Node) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in reversed(parts):
            value = self.build(part)
            if isinstance(value, dict):
                merged |= value
            else:
                self._problem(part, "<< merges a mapping only", "point it at a mapping's anchor")
        return merged

    def _problem(self, node: yaml.Node, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file, node.start_mark.line + 1, "", what, fix))


def read_text(path: Path, file: str, missing_hint: str) -> str:
    """Read a file that a person wrote.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file", missing_hint) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        problem = Problem(file, line, "", "this is not UTF-8 text", "save the file as UTF-8")
        raise ProblemsError([problem]) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def parse(text: str, file: str) -> Document:
    """Parse one YAML document.

    Raises:
        ProblemsError: The text is not YAML, or has duplicate keys, alien tags or recursive anchors.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = f"this is not valid YAML: {error.problem or error.context}"
        fix = "look at this line and the one before it: quotes, indentation, tabs"
        raise ProblemsError([Problem(file, line, "", what, fix)]) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        what = f"the character #x{ord(text[error.position]):02x} is not allowed in YAML"
        raise ProblemsError([Problem(file, line, "", what, "remove it")]) from None
    except RecursionError:
        raise _too_deep(file) from None
    if root is None:
        return Document(file, None, None)
    builder = _Builder(file)
    try:
        value = builder.build(root)
    except RecursionError:
        raise _too_deep(file) from None
    if builder.problems:
        raise ProblemsError(builder.problems)
    return Document(file, value, root)


def _too_deep(file: str) -> ProblemsError:
    what = "this is nested deeper than any inventory or job"
    return ProblemsError([Problem(file, 1, "", what, "check the brackets")])
