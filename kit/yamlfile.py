"""A YAML parser that records the line of every value.

PyYAML's libyaml binding creates nodes with positions. This module converts them to values by the
core schema of YAML 1.2 (`on`, `NO` and `22:30` are text) and rejects duplicate keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kit.errors import InputError, Loc, Problem, ProblemsError
from kit.files import LARGEST, read_plain
from kit.values import WrongValueError
from trainer.contract.words import shown

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_MAP = "tag:yaml.org,2002:map"
_SEQ = "tag:yaml.org,2002:seq"

_LARGEST = 2**63 - 1
_TOO_DEEP = ("this is nested too deeply", "check the brackets")
_DEEPEST = 100
"""libyaml parses recursively in C: 100,000 brackets overflow its stack."""
_LARGEST_EXPANDED = 1_000_000
"""The most values that aliases may expand to: ten lines can expand to billions."""

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
    (_MERGE, r"<<", ["<"]),
]


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Return a node's tag. It is cached: a large inventory repeats few words."""
        if kind is yaml.ScalarNode:
            return _plain_tag(value) if implicit[0] else _STR
        return _MAP if kind is yaml.MappingNode else _SEQ

    def descend_resolver(self, *_: object) -> None:
        """Skip PyYAML's resolvers by path, which take a fifth of the time."""

    def ascend_resolver(self) -> None:
        """See `descend_resolver`."""


for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


@lru_cache(maxsize=65_536)
def _plain_tag(scalar: str) -> str:
    """Return the tag of a scalar without quotes."""
    resolvers = _Loader.yaml_implicit_resolvers.get(scalar[:1], [])
    return next((tag for tag, pattern in resolvers if pattern.match(scalar)), _STR)


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


_SCALARS: dict[str, Callable[[str], Any]] = {
    _STR: str,
    _NULL: lambda _: None,
    _BOOL: _boolean,
    _INT: _integer,
    _FLOAT: lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    _MERGE: str,
}


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file: its value, the nodes with the lines, and the text that they are from.

    `file` is the name for messages.
    """

    file: str
    value: Any
    root: yaml.Node | None = field(repr=False)
    text: str = field(repr=False)
    _children: dict[int, dict[str, tuple[int, yaml.Node]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def line(self, loc: Loc) -> int:
        """Return the 1-based line of `loc`, or of its nearest ancestor in the file."""
        node, line = self.root, 1
        if node is not None:
            line = node.start_mark.line + 1
        for part in loc:
            found = self._child(node, part)
            if found is None:
                break
            line, node = found
        return line

    def _child(self, node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
        if isinstance(node, yaml.MappingNode):
            if id(node) not in self._children:
                self._children[id(node)] = {
                    key.value: (key.start_mark.line + 1, value)
                    for key, value in reversed(node.value)
                    if key.tag != _MERGE and isinstance(key, yaml.ScalarNode)
                }
            own = self._children[id(node)].get(str(part))
            merged = (value for key, value in node.value if not own and key.tag == _MERGE)
            return own or next(filter(None, (self._child(each, part) for each in merged)), None)
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item = node.value[part]
            return item.start_mark.line + 1, item
        return None


class _Builder:
    """Converts nodes to values and collects the mistakes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._done: dict[int, tuple[Any, int]] = {}
        self._size = 0

    def build(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        key = id(node)
        if key in self._done:
            value, size = self._done[key]
            self._size += size
            if self._size > _LARGEST_EXPANDED:
                self._problem(node, "the aliases stand for too many values", "write fewer")
                raise ProblemsError(self.problems)
            return value
        if key in self._open:
            self._problem(node, "the anchor contains itself", "write the value out once")
            return None
        if node.tag not in {_MAP, _SEQ}:
            self._problem(node, f"the tag {node.tag} is not supported", "leave it out")
        self._open.add(key)
        before = self._size
        value = self._mapping(node) if isinstance(node, yaml.MappingNode) else self._sequence(node)
        self._open.discard(key)
        self._size += 1
        self._done[key] = value, self._size - before
        return value

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if "\0" in node.value:  # No path, argument or variable can contain it.
            self._problem(node, "the character #x00 is not allowed", "remove it")
            return node.value.replace("\0", "")
        make = _SCALARS.get(node.tag)
        if make is None:
            self._problem(node, f"the tag {node.tag} is not supported", "leave it out")
            return node.value
        try:
            return make(node.value)
        except WrongValueError as error:
            self._problem(node, error.what, error.fix)
            return 0
        except ValueError:
            kind = node.tag.rsplit(":", 1)[-1]
            self._problem(node, f"{shown(node.value)} is no {kind}", "write it without the tag")
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
            key = self._scalar(key_node) if "\0" in key_node.value else key_node.value
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
            elif id(part) not in self._open:
                self._problem(part, "<< merges a mapping only", "point it at a mapping's anchor")
        return merged

    def _problem(self, node: yaml.Node, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file, node.start_mark.line + 1, "", what, fix))


def read_text(path: Path, file: str, missing_hint: str) -> str:
    """Read a file of the user.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        content = read_plain(path, largest=LARGEST)
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file", missing_hint) from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problem = Problem(file, line, "", "this is not UTF-8 text", "save the file as UTF-8")
        raise ProblemsError([problem]) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def parse(text: str, file: str) -> Document:
    """Parse one YAML document.

    Raises:
        ProblemsError: The text is not YAML, or has duplicate keys, unknown tags or cyclic anchors.
    """
    try:
        if _looks_deep(text):
            _refuse_deep(text, file)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        if _is_deep(text):  # Newer versions of libyaml count too, and refuse before `_refuse_deep`.
            raise ProblemsError([Problem(file, line, "", *_TOO_DEEP)]) from None
        raise ProblemsError([_not_yaml(error, file, line)]) from None
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes.
        line = text.encode()[: error.position].count(b"\n") + 1
        what = f"the character #x{error.character:02x} is not allowed in YAML"
        raise ProblemsError([Problem(file, line, "", what, "remove it")]) from None
    if root is None:
        return Document(file, None, None, text)
    builder = _Builder(file)
    value = builder.build(root)
    if builder.problems:
        raise ProblemsError(builder.problems)
    return Document(file, value, root, text)


def _not_yaml(error: yaml.MarkedYAMLError, file: str, line: int) -> Problem:
    if error.problem == "but found another document":
        return Problem(file, line, "", "a second document begins here", "write one in each file")
    if error.context and error.context.startswith("found duplicate anchor"):
        return Problem(file, line, "", "this anchor is already defined", "give it another name")
    what = f"this is not valid YAML: {error.problem or error.context}"
    fix = "look at this line and the one before it: quotes, indentation, tabs"
    return Problem(file, line, "", what, fix)


def _looks_deep(text: str) -> bool:
    """Estimate whether the nesting may be too deep; false alarms are possible."""
    return _is_deep(text) or re.search(rf"^[ ?:-]{{{_DEEPEST}}}", text, re.MULTILINE) is not None


def _is_deep(text: str) -> bool:
    """Whether brackets, or indicators such as `- - -` in one line, are nested too deeply."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    indicators = rf"^(?: *[?:-] ){{{_DEEPEST}}}"
    return deepest > _DEEPEST or re.search(indicators, text, re.MULTILINE) is not None


def _refuse_deep(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ProblemsError([Problem(file, line, "", *_TOO_DEEP)])
